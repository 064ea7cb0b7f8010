// Benchmarks with wrong results: outputs are off by one part in a thousand, gradients by one in a
// hundred. They must end in an error. The same cases with right results must pass, so that nothing
// else can be the error.

#include "mhla/attention/softmax.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "support/gradient_form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench {
namespace {

/// Factors that spoil the results.
struct Factors {
  float out = 1, q = 1, k = 1, v = 1, mixing = 1;
};

void spoil(TensorView<float> x, float factor) {
  for (Index i = 0; i < x.shape[0] * x.strides[0]; ++i) x.data[i] *= factor;
}

/// The bidirectional form with wrong results.
struct WrongForm {
  using In = BatchInputs<float>;
  Factors factors;
  Contiguous blocks;
  MixingMatrix<float> mixing, sums{mixing.pattern()};

  std::size_t forward_bytes(const In& in, const ExecutorRef& pool) const {
    return bidirectional_workspace_bytes(in, blocks, Operator{}, pool);
  }
  std::size_t backward_bytes(const In& in, const ExecutorRef& pool) const {
    return bidirectional_gradient_workspace_bytes(in, blocks, mixing, Operator{}, pool);
  }
  static std::size_t kept_bytes(const In&) { return 0; }
  void forward(const In& in, TensorView<float> out, const Call& call) const {
    bidirectional(in, blocks, mixing, Operator{}, out, call);
    spoil(out, factors.out);
  }
  void backward(const In& in, TensorView<const float> dout, const BatchGradients<float>& gradients,
                const Call& call) {
    bidirectional_gradient(in, blocks, mixing, Operator{}, dout, gradients, {.mixing = sums}, call);
    spoil(gradients.q, factors.q);
    spoil(gradients.k, factors.k);
    spoil(gradients.v, factors.v);
    for (float& c : sums.storage()) c *= factors.mixing;
  }
  auto weights(double step) const {
    return [this, m = moved(mixing, step, sums)](const Inputs<double>& head, Index t) {
      return bidirectional_weights<double>(blocks, m)(head, t);
    };
  }
  MixingMatrix<float>* dmixing() { return &sums; }
};

const bool kRegistered = [] {
  const Shape shape = growth_shape(kShortestGrowth);
  const Contiguous blocks(shape.tokens(), shape.block_length());
  const MixingMatrix<float> mixing(Matrix<float>::Constant(4, 4, 0.25f));
  const Cost cost = bidirectional_cost<float>(shape, mixing);
  const auto output = [=](const std::string& name, float factor) {
    const WrongForm form{{.out = factor}, blocks, mixing};
    register_case(name, "float", shape, 1, [=](Session& s) {
      time_form<float>(
          s, shape, 1, cost,
          [&](const auto& in, const ExecutorRef& pool) { return form.forward_bytes(in, pool); },
          [&](const auto& in, auto out, const Call& call) { form.forward(in, out, call); },
          [&] { return bidirectional_weights<float>(form.blocks, form.mixing); });
    });
  };
  const auto gradient = [=](const std::string& name, const Factors& factors) {
    register_case(name, "float", shape, 1, [=](Session& s) {
      time_gradient<float>(s, shape, 1, cost, WrongForm{factors, blocks, mixing});
    });
  };
  output("Right", 1);
  output("WrongOutput", 1.001f);
  output("WrongNaN", std::numeric_limits<float>::quiet_NaN());
  register_case("WrongSoftmax", "float", shape, 1, [=](Session& s) {
    time_form<float>(
        s, shape, 1, softmax_cost<float>(shape),
        [](const auto& in, const ExecutorRef& pool) { return softmax_workspace_bytes(in, pool); },
        [](const auto& in, auto out, const Call& call) {
          softmax_bidirectional(in, out, {}, call);
          spoil(out, 1.001f);
        },
        [] { return softmax_weights<float>; });
  });
  gradient("GradientRight", {});
  gradient("WrongQuery", {.q = 1.01f});
  gradient("WrongKey", {.k = 1.01f});
  gradient("WrongValue", {.v = 1.01f});
  gradient("WrongCoefficient", {.mixing = 1.1f});
  return true;
}();

}  // namespace
}  // namespace mhla::bench
