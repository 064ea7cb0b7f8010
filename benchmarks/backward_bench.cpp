// The gradients of both forms of MHLA, of q, k, v and the mixing matrix, on the shapes of the
// forward cases. Backward computes the summaries again; BackwardKept uses the summaries that the
// forward kept. Each timed call follows a call of the forward, whose time gives of_forward.

#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "support/gradient_form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::backward_bench {
namespace {

template <Scalar T, Partition P>
class BidirectionalForm {
  using A = accumulator_t<T>;

 public:
  BidirectionalForm(const P& blocks, const MixingMatrix<A>& mixing)
      : blocks_(blocks), mixing_(mixing), dmixing_(mixing.pattern()) {}

  std::size_t forward_bytes(const BatchInputs<T>& in, const ExecutorRef& pool) const {
    return bidirectional_workspace_bytes(in, blocks_, op_, pool);
  }
  std::size_t backward_bytes(const BatchInputs<T>& in, const ExecutorRef& pool) const {
    return bidirectional_gradient_workspace_bytes(in, blocks_, mixing_, op_, pool);
  }
  std::size_t kept_bytes(const BatchInputs<T>& in) const {
    return bidirectional_kept_bytes(in, blocks_, op_);
  }
  void forward(const BatchInputs<T>& in, TensorView<T> out, const Call& call) const {
    bidirectional(in, blocks_, mixing_, op_, out, call);
  }
  void backward(const BatchInputs<T>& in, TensorView<const T> dout,
                const BatchGradients<T>& gradients, const Call& call) {
    bidirectional_gradient(in, blocks_, mixing_, op_, dout, gradients, {.mixing = dmixing_}, call);
  }
  auto weights(double step) const {
    return [this, m = moved(mixing_, step, dmixing_)](const Inputs<double>& head, Index t) {
      return bidirectional_weights<double>(blocks_, m)(head, t);
    };
  }
  MixingMatrix<A>* dmixing() { return &dmixing_; }

 private:
  P blocks_;
  MixingMatrix<A> mixing_, dmixing_;
  Operator<> op_;
};

class CausalForm {
 public:
  explicit CausalForm(const Shape& shape)
      : blocks_(shape.tokens(), shape.block_length()),
        mixing_(uniform_causal<float>(blocks_.blocks())),
        dmixing_(mixing_.pattern()),
        op_(language_operator(shape.width)) {}

  std::size_t forward_bytes(const BatchInputs<float>& in, const ExecutorRef& pool) const {
    return causal_workspace_bytes(in, blocks_, op_, pool);
  }
  std::size_t backward_bytes(const BatchInputs<float>& in, const ExecutorRef& pool) const {
    return causal_gradient_workspace_bytes(in, blocks_, mixing_, op_, pool);
  }
  std::size_t kept_bytes(const BatchInputs<float>& in) const {
    return causal_kept_bytes(in, blocks_, op_);
  }
  void forward(const BatchInputs<float>& in, TensorView<float> out, const Call& call) const {
    causal(in, blocks_, mixing_, op_, out, call);
  }
  void backward(const BatchInputs<float>& in, TensorView<const float> dout,
                const BatchGradients<float>& gradients, const Call& call) {
    causal_gradient(in, blocks_, mixing_, op_, dout, gradients, {.mixing = dmixing_}, call);
  }
  auto weights(double step) const {
    return [this, m = moved(mixing_, step, dmixing_)](const Inputs<double>& head, Index t) {
      return causal_weights<double>(blocks_, m)(head, t);
    };
  }
  MixingMatrix<float>* dmixing() { return &dmixing_; }

 private:
  Contiguous blocks_;
  MixingMatrix<float> mixing_, dmixing_;
  decltype(language_operator(0)) op_;
};

/// \param mixing  function: shape -> mixing matrix
template <Scalar T, class Mixing>
void bidirectional_case(Session& session, const Shape& shape, Index threads, const Mixing& mixing,
                        bool keep) {
  const MixingMatrix<accumulator_t<T>> m = mixing(shape);
  with_blocks(shape, [&]<class P>(const P& blocks) {
    time_gradient<T>(session, shape, threads, bidirectional_cost<T>(shape, m),
                     BidirectionalForm<T, P>(blocks, m), keep);
  });
}

void causal_case(Session& session, const Shape& shape, Index threads, bool keep) {
  time_gradient<float>(session, shape, threads, causal_cost<float>(shape), CausalForm(shape), keep);
}

/// Registers run(session, shape, threads, keep) on all numbers of threads.
/// \param kept  adds a case with kept summaries on one thread
template <class Case>
void register_shape(std::string_view scalar, const Shape& shape, bool kept, const Case& run) {
  for_each_thread_count(shape, [&](Index threads) {
    register_case("Backward", scalar, shape, threads,
                  [=](Session& s) { run(s, shape, threads, false); });
  });
  if (!kept) return;
  register_case("BackwardKept", scalar, shape, 1, [=](Session& s) { run(s, shape, 1, true); });
}

template <Scalar T>
void initially_mixed(Session& session, const Shape& shape, Index threads, bool keep) {
  bidirectional_case<T>(session, shape, threads, initial_mixing<accumulator_t<T>>, keep);
}

void banded(Session& session, const Shape& shape, Index threads, bool keep) {
  const auto band = [](const Shape& s) {
    return band_mixing<float>(s.tokens() / s.block_length());
  };
  bidirectional_case<float>(session, shape, threads, band, keep);
}

const bool kRegistered = [] {
  const auto shapes = bidirectional_shapes();
  for (const Shape& s : shapes) register_shape("float", s, true, initially_mixed<float>);
  const Shape shape = shape_named(shapes, "dit_s_512");
  register_shape("double", shape, false, initially_mixed<double>);
  register_shape("bfloat16", shape, false, initially_mixed<Eigen::bfloat16>);
  for (const Shape& s : causal_shapes()) register_shape("float", s, true, causal_case);
  for (Index n = kShortestGrowth; n <= kLongestBackward; n *= 2) {
    register_shape("float", growth_shape(n), false, banded);
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::backward_bench
