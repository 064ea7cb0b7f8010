// Benchmarks whose results are off, an output by one part in a thousand, a gradient by one in a
// hundred: they must end in an error, not in a number. The same cases without the mistake must
// pass, so that nothing else can be what failed.

#include "mhla/gradient/batched.hpp"
#include "support/gradient_form.hpp"
#include "support/gradient_rules.hpp"

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

/// The gradient of softmax attention, with dv times a factor.
struct SoftmaxForm {
  using In = BatchInputs<float>;

  static std::size_t forward_bytes(const In& in, ThreadPool& pool) {
    return softmax_workspace_bytes(in, pool);
  }
  static std::size_t backward_bytes(const In& in, ThreadPool& pool) {
    return softmax_gradient_workspace_bytes(in, pool);
  }
  static std::size_t kept_bytes(const In&) { return 0; }
  static void forward(const In& in, TensorView<float> out, Workspace memory, ThreadPool& pool,
                      Workspace) {
    softmax_bidirectional(in, out, {}, memory, pool);
  }
  void backward(const In& in, TensorView<const float> dout, const BatchGradients<float>& gradients,
                Workspace memory, ThreadPool& pool, Workspace) const {
    softmax_bidirectional_gradient(in, dout, gradients, {}, memory, pool);
    const Index count = gradients.v.shape[0] * gradients.v.strides[0];
    for (Index i = 0; i < count; ++i) gradients.v.data[i] *= factor;
  }
  GradientRule rule() const { return softmax_rule(shape.tokens(), shape.width); }
  static const MixingMatrix<float>* dmixing() { return nullptr; }

  Shape shape;
  float factor;
};

void gradient_times(Session& session, const Shape& shape, float factor) {
  time_gradient<float>(session, shape, 1, softmax_cost<float>(shape), SoftmaxForm{shape, factor});
}

const bool kRegistered = [] {
  const Shape shape = growth_shape(kShortestGrowth);
  register_case("Right", "float", shape, 1, [=](Session& s) { softmax_times(s, shape, 1.0f); });
  register_case("Wrong", "float", shape, 1, [=](Session& s) { softmax_times(s, shape, 1.001f); });
  register_case("GradientRight", "float", shape, 1,
                [=](Session& s) { gradient_times(s, shape, 1.0f); });
  register_case("GradientWrong", "float", shape, 1,
                [=](Session& s) { gradient_times(s, shape, 1.01f); });
  return true;
}();

}  // namespace
}  // namespace mhla::bench
