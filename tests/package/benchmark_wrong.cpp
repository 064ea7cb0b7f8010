// A benchmark whose result is off by one part in a thousand: it must end in an error, not in a
// number. The same case without the mistake must pass, so that nothing else can be what failed.

#include "mhla/attention/batched.hpp"
#include "support/form.hpp"

namespace mhla::bench {
namespace {

void softmax_times(Session& session, const Shape& shape, float factor) {
  time_form<float>(
      session, shape, 1, softmax_cost<float>(shape),
      [](const auto& in, ThreadPool& pool) { return softmax_workspace_bytes(in, pool); },
      [factor](const auto& in, auto out, Workspace memory, ThreadPool& pool) {
        softmax_bidirectional(in, out, {}, memory, pool);
        const Index count = out.shape[0] * out.strides[0];
        for (Index i = 0; i < count; ++i) out.data[i] *= factor;
      },
      [] { return [](const Inputs<float>& in, Index t) { return softmax_weights(in, t); }; });
}

const bool kRegistered = [] {
  const Shape shape = growth_shape(kShortestGrowth);
  register_case("Right", "float", shape, 1, [=](Session& s) { softmax_times(s, shape, 1.0f); });
  register_case("Wrong", "float", shape, 1, [=](Session& s) { softmax_times(s, shape, 1.001f); });
  return true;
}();

}  // namespace
}  // namespace mhla::bench
