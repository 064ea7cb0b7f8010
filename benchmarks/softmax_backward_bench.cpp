// The gradients of softmax attention, on the shapes of the forward cases whose call takes less than
// about 0.3 s.

#include "mhla/gradient/softmax.hpp"
#include "support/gradient_form.hpp"

namespace mhla::bench::softmax_backward_bench {
namespace {

using In = BatchInputs<float>;

struct SoftmaxForm {
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
  static void backward(const In& in, TensorView<const float> dout,
                       const BatchGradients<float>& gradients, const Call& call) {
    softmax_bidirectional_gradient(in, dout, gradients, {}, call);
  }
  static auto weights(double) { return softmax_weights<double>; }
  static MixingMatrix<float>* dmixing() { return nullptr; }
};

void register_shape(const Shape& shape) {
  for_each_thread_count(shape, [&](Index threads) {
    register_case("SoftmaxBackward", "float", shape, threads, [=](Session& s) {
      time_gradient<float>(s, shape, threads, softmax_cost<float>(shape), SoftmaxForm{});
    });
  });
}

const bool kRegistered = [] {
  for (const char* name : {"deit_s", "dit_s_512"}) {
    register_shape(shape_named(bidirectional_shapes(), name));
  }
  for (Index n = kShortestGrowth; n <= kLongestSoftmaxBackward; n *= 2) {
    register_shape(growth_shape(n));
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::softmax_backward_bench
