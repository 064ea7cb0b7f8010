// The gradients of plain linear attention, on the shapes of the forward cases whose call takes less
// than about 0.3 s.

#include "mhla/gradient/linear.hpp"
#include "support/gradient_form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::linear_backward_bench {
namespace {

using In = BatchInputs<float>;

/// Base of both forms: no summaries to keep, no mixing matrix.
template <bool kCausal>
struct LinearForm {
  static std::size_t kept_bytes(const In&) { return 0; }
  static auto weights(double) { return linear_weights(kCausal, 0); }
  static MixingMatrix<float>* dmixing() { return nullptr; }

  Operator<> op;
};

struct BidirectionalForm : LinearForm<false> {
  std::size_t forward_bytes(const In& in, const ExecutorRef& pool) const {
    return linear_bidirectional_workspace_bytes(in, op, pool);
  }
  std::size_t backward_bytes(const In& in, const ExecutorRef& pool) const {
    return linear_bidirectional_gradient_workspace_bytes(in, op, pool);
  }
  void forward(const In& in, TensorView<float> out, const Call& call) const {
    linear_bidirectional(in, op, out, call);
  }
  void backward(const In& in, TensorView<const float> dout, const BatchGradients<float>& gradients,
                const Call& call) const {
    linear_bidirectional_gradient(in, op, dout, gradients, {}, call);
  }
};

struct CausalForm : LinearForm<true> {
  std::size_t forward_bytes(const In& in, const ExecutorRef& pool) const {
    return linear_causal_workspace_bytes(in, op, pool);
  }
  std::size_t backward_bytes(const In& in, const ExecutorRef& pool) const {
    return linear_causal_gradient_workspace_bytes(in, op, pool);
  }
  void forward(const In& in, TensorView<float> out, const Call& call) const {
    linear_causal(in, op, out, call);
  }
  void backward(const In& in, TensorView<const float> dout, const BatchGradients<float>& gradients,
                const Call& call) const {
    linear_causal_gradient(in, op, dout, gradients, {}, call);
  }
};

template <class Form>
void register_shape(const Shape& shape) {
  for_each_thread_count(shape, [&](Index threads) {
    register_case("LinearBackward", "float", shape, threads, [=](Session& s) {
      time_gradient<float>(s, shape, threads, linear_cost<float>(shape), Form{});
    });
  });
}

const bool kRegistered = [] {
  for (const char* name : {"dit_s_512", "n4096_m64"}) {
    register_shape<BidirectionalForm>(shape_named(bidirectional_shapes(), name));
  }
  register_shape<CausalForm>(shape_named(causal_shapes(), "nlp_340m"));
  for (Index n = kShortestGrowth; n <= kLongestBackward; n *= 2) {
    register_shape<BidirectionalForm>(growth_shape(n));
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::linear_backward_bench
