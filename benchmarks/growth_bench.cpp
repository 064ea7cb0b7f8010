// Time over length: bidirectional MHLA with a banded mixing matrix, so that cost grows with M and
// not with M^2. Linear and softmax attention of the same lengths are in their own files.

#include "mhla/attention/bidirectional.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::growth_bench {
namespace {

void growth_case(Session& session, const Shape& shape) {
  const Contiguous blocks(shape.tokens(), shape.block_length());
  const auto mixing = band_mixing<float>(blocks.blocks());
  const Operator op;
  time_form<float>(
      session, shape, 1, bidirectional_cost<float>(shape, mixing),
      [&](const auto& in, const ExecutorRef& pool) {
        return bidirectional_workspace_bytes(in, blocks, op, pool);
      },
      [&](const auto& in, auto out, const Call& call) {
        bidirectional(in, blocks, mixing, op, out, call);
      },
      [&] { return bidirectional_weights<float>(blocks, mixing); });
}

const bool kRegistered = [] {
  for (Index n = kShortestGrowth; n <= kLongestGrowth; n *= 2) {
    const Shape shape = growth_shape(n);
    register_case("Bidirectional", "float", shape, 1, [=](Session& s) { growth_case(s, shape); });
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::growth_bench
