// Causal MHLA, all heads, with the options of the released language model: no normaliser, scale
// 1/sqrt(D), equal coefficients for all earlier blocks.

#include "mhla/attention/causal.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::causal_bench {
namespace {

void causal_case(Session& session, const Shape& shape, Index threads) {
  const Contiguous blocks(shape.tokens(), shape.block_length());
  const auto mixing = uniform_causal<float>(blocks.blocks());
  const auto op = language_operator(shape.width);
  time_form<float>(
      session, shape, threads, causal_cost<float>(shape),
      [&](const auto& in, const ExecutorRef& pool) {
        return causal_workspace_bytes(in, blocks, op, pool);
      },
      [&](const auto& in, auto out, const Call& call) {
        causal(in, blocks, mixing, op, out, call);
      },
      [&] { return causal_weights<float>(blocks, mixing); });
}

const bool kRegistered = [] {
  for (const Shape& shape : causal_shapes()) {
    for_each_thread_count(shape, [&](Index threads) {
      register_case("Causal", "float", shape, threads,
                    [=](Session& s) { causal_case(s, shape, threads); });
    });
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::causal_bench
