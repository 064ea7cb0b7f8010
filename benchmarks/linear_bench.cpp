// Plain linear attention, which MHLA extends: one summary of all tokens.

#include "mhla/attention/linear.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::linear_bench {
namespace {

void bidirectional_case(Session& session, const Shape& shape, Index threads) {
  const Operator op;
  time_form<float>(
      session, shape, threads, linear_cost<float>(shape),
      [&](const auto& in, const ExecutorRef& pool) {
        return linear_bidirectional_workspace_bytes(in, op, pool);
      },
      [&](const auto& in, auto out, const Call& call) { linear_bidirectional(in, op, out, call); },
      [] { return linear_weights(false, 7); });
}

void causal_case(Session& session, const Shape& shape, Index threads) {
  const Operator op;
  time_form<float>(
      session, shape, threads, linear_cost<float>(shape),
      [&](const auto& in, const ExecutorRef& pool) {
        return linear_causal_workspace_bytes(in, op, pool);
      },
      [&](const auto& in, auto out, const Call& call) { linear_causal(in, op, out, call); },
      [] { return linear_weights(true, detail::kStripTokens + 8); });
}

template <class Case>
void register_shape(const Shape& shape, const Case& run) {
  for_each_thread_count(shape, [&](Index threads) {
    register_case("Linear", "float", shape, threads, [=](Session& s) { run(s, shape, threads); });
  });
}

const bool kRegistered = [] {
  const auto shapes = bidirectional_shapes();
  for (const char* name : {"dit_s_512", "n4096_m64", "wan_1300m"}) {
    register_shape(shape_named(shapes, name), bidirectional_case);
  }
  for (const Shape& shape : causal_shapes()) register_shape(shape, causal_case);
  for (Index n = kShortestGrowth; n <= kLongestGrowth; n *= 2) {
    register_shape(growth_shape(n), bidirectional_case);
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::linear_bench
