/// \file
/// mhla::summary_bytes: bytes of the summaries that a forward keeps, for shapes without data.

#include "summaries.hpp"

#include "arguments.hpp"

namespace mhla_torch {
namespace {

/// (features, values, features of the sums, true for float64) -> bytes per block
void bytes(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  const auto features = from.take<std::int64_t>(), values = from.take<std::int64_t>(),
             sums = from.take<std::int64_t>();
  const bool doubles = from.take<bool>();
  stack[0] = torch::stable::detail::from(doubles ? summary_bytes<double>(features, values, sums)
                                                 : summary_bytes<float>(features, values, sums));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mhla, library) {
  library.def("summary_bytes(int features, int values, int sums, bool doubles) -> int");
}
STABLE_TORCH_LIBRARY_IMPL(mhla, CompositeExplicitAutograd, library) {
  library.impl("summary_bytes", &bytes);
}

}  // namespace mhla_torch
