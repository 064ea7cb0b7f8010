// Benchmarks whose results are off, an output by one part in a thousand, a gradient by one in a
// hundred: they must end in an error, not in a number. The same cases without the mistake must
// pass, so that nothing else can be what failed.

#include "mhla/gradient/softmax.hpp"
#include "support/gradient_form.hpp"
#include "support/gradient_rules.hpp"

namespace mhla::bench {
namespace {

void spoil(TensorView<float> x, float factor) {
  for (Index i = 0; i < x.shape[0] * x.strides[0]; ++i) x.data[i] *= factor;
}

void softmax_times(Session& session, const Shape& shape, float factor) {
  time_form<float>(
      session, shape, 1, softmax_cost<float>(shape),
      [](const auto& in, const ExecutorRef& pool) { return softmax_workspace_bytes(in, pool); },
      [factor](const auto& in, auto out, const Call& call) {
        softmax_bidirectional(in, out, {}, call);
        spoil(out, factor);
      },
      [] { return softmax_weights<float>; });
}

/// The gradient of softmax attention, with dv times a factor.
struct SoftmaxForm {
  using In = BatchInputs<float>;
  Shape shape;
  float factor;

  static std::size_t forward_bytes(const In& in, const ExecutorRef& pool) {
    return softmax_workspace_bytes(in, pool);
  }
  static std::size_t backward_bytes(const In& in, const ExecutorRef& pool) {
    return softmax_gradient_workspace_bytes(in, pool);
  }
  static std::size_t kept_bytes(const In&) { return 0; }
  static void forward(const In& in, TensorView<float> out, const Call& call) {
    softmax_bidirectional(in, out, {}, call);
  }
  void backward(const In& in, TensorView<const float> dout, const BatchGradients<float>& gradients,
                const Call& call) const {
    softmax_bidirectional_gradient(in, dout, gradients, {}, call);
    spoil(gradients.v, factor);
  }
  GradientRule rule() const { return softmax_rule(shape.tokens(), shape.width); }
  static const MixingMatrix<float>* dmixing() { return nullptr; }
};

const bool kRegistered = [] {
  const Shape shape = growth_shape(kShortestGrowth);
  const auto add = [&](const std::string& name, float output, float gradient) {
    register_case(name, "float", shape, 1, [=](Session& s) { softmax_times(s, shape, output); });
    register_case("Gradient" + name, "float", shape, 1, [=](Session& s) {
      time_gradient<float>(s, shape, 1, softmax_cost<float>(shape), SoftmaxForm{shape, gradient});
    });
  };
  add("Right", 1, 1);
  add("Wrong", 1.001f, 1.01f);
  return true;
}();

}  // namespace
}  // namespace mhla::bench
