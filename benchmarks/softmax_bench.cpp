// Softmax attention, which MHLA replaces.

#include "mhla/attention/softmax.hpp"
#include "support/form.hpp"

namespace mhla::bench::softmax_bench {
namespace {

void softmax_case(Session& session, const Shape& shape, Index threads) {
  time_form<float>(
      session, shape, threads, softmax_cost<float>(shape),
      [](const auto& in, const ExecutorRef& pool) { return softmax_workspace_bytes(in, pool); },
      [](const auto& in, auto out, const Call& call) { softmax_bidirectional(in, out, {}, call); },
      [] { return softmax_weights<float>; });
}

void register_shape(const Shape& shape) {
  for_each_thread_count(shape, [&](Index threads) {
    register_case("Softmax", "float", shape, threads,
                  [=](Session& s) { softmax_case(s, shape, threads); });
  });
}

const bool kRegistered = [] {
  const auto shapes = bidirectional_shapes();
  for (const char* name : {"deit_s", "dit_s_512", "n4096_m64"}) {
    register_shape(shape_named(shapes, name));
  }
  for (Index n = kShortestGrowth; n <= kLongestSoftmaxGrowth; n *= 2) {
    register_shape(growth_shape(n));
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::softmax_bench
