/// \file
/// mhla::locality: an initial mixing matrix for training.

#include <algorithm>
#include <mhla/policy/locality.hpp>

#include "arguments.hpp"
#include "blocks.hpp"

namespace mhla_torch {
namespace {

/// (blocks along each axis, true if columns instead of rows sum to 1) -> float64 [M,M]
void locality(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  const auto blocks = from.take<std::vector<std::int64_t>>();
  const auto sums = from.take<bool>() ? mhla::SumToOne::kColumns : mhla::SumToOne::kRows;
  const auto values =
      mhla::locality<double>(grid_shape("mhla::locality", "blocks", blocks), {.sum_to_one = sums});
  const Tensor out = torch::stable::empty({values.rows(), values.cols()}, ScalarType::Double);
  std::ranges::copy(values.storage(), static_cast<double*>(out.mutable_data_ptr()));
  stack[0] = torch::stable::detail::from(out);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mhla, library) {
  library.def("locality(int[] blocks, bool columns=False) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(mhla, CompositeExplicitAutograd, library) {
  library.impl("locality", &locality);
}

}  // namespace mhla_torch
