/// \file
/// mhla::resize: adapts a mixing matrix to another grid of blocks.

#include <algorithm>
#include <mhla/fit/resize.hpp>
#include <string>

#include "arguments.hpp"
#include "blocks.hpp"

namespace mhla_torch {
namespace {

mhla::DistanceUnit unit_of(const std::string& name) {
  if (name == "extent") return mhla::DistanceUnit::kExtent;
  if (name == "block") return mhla::DistanceUnit::kBlock;
  fail<mhla::option_error>("resize", "unit", "is \"" + name + "\"", "extent or block");
}

mhla::SumToOne sums_of(const std::string& name) {
  if (name == "rows") return mhla::SumToOne::kRows;
  if (name == "columns") return mhla::SumToOne::kColumns;
  if (name == "nothing") return mhla::SumToOne::kNothing;
  fail<mhla::option_error>("resize", "sum_to_one", "is \"" + name + "\"",
                           "rows, columns or nothing");
}

/// (float64 [M,M], blocks along each axis, new blocks along each axis, unit, sums) -> (float64
/// [M',M'], residual)
void resize(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  const Tensor mixing = from.take<Tensor>();
  const auto from_blocks = from.take<std::vector<std::int64_t>>();
  const auto to_blocks = from.take<std::vector<std::int64_t>>();
  const auto unit = unit_of(from.take<std::string>());
  const auto sums = sums_of(from.take<std::string>());
  const Tensor rows = dense(mixing);
  const auto resized = mhla::resize(mixing_view<const double>("resize", rows),
                                    grid_shape("mhla::resize", "from_blocks", from_blocks),
                                    grid_shape("mhla::resize", "to_blocks", to_blocks),
                                    {.unit = unit, .sum_to_one = sums});
  const mhla::MixingMatrix<double>& matrix = resized.mixing;
  const Tensor out = torch::stable::empty({matrix.rows(), matrix.cols()}, ScalarType::Double);
  std::ranges::copy(matrix.storage(), static_cast<double*>(out.mutable_data_ptr()));
  stack[0] = torch::stable::detail::from(out);
  stack[1] = torch::stable::detail::from(resized.residual);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mhla, library) {
  library.def(
      "resize(Tensor mixing, int[] from_blocks, int[] to_blocks, str unit='extent', "
      "str sum_to_one='rows') -> (Tensor, float)");
}
STABLE_TORCH_LIBRARY_IMPL(mhla, CPU, library) { library.impl("resize", &resize); }

}  // namespace mhla_torch
