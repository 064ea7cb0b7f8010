// A mixing matrix per head instead of one that all heads share, forward and gradient, on the shapes
// of the forward cases. All heads have the same coefficients, so that results are those of the
// shared matrix, in the same bits. Each timed call follows one with the shared matrix, whose time
// gives of_forward.

#include <cmath>
#include <limits>

#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::per_head_bench {
namespace {

/// Outputs and gradients of one kind of matrix.
struct Results {
  Tensor<float> out, dq, dk, dv;
  MixingMatrix<float> dmixing;

  Results(const Shape& shape, const MixingMatrix<float>& mixing)
      : out(zeros<float>(shape, shape.values)),
        dq(zeros<float>(shape, shape.width)),
        dk(dq),
        dv(out),
        dmixing(zeros_like(mixing)) {}
  BatchGradients<float> gradients() { return {.q = dq, .k = dk, .v = dv}; }
};

/// Error over allowed error: bits of tensors, and rounding of the sum over the heads of dm.
double worst_of(const Results& each, const Results& shared) {
  constexpr double kWrong = std::numeric_limits<double>::infinity(), kRounding = 1e-4;
  if (each.out.data() != shared.out.data() || each.dq.data() != shared.dq.data() ||
      each.dk.data() != shared.dk.data() || each.dv.data() != shared.dv.data()) {
    return kWrong;
  }
  const Matrix<double> expected = shared.dmixing.dense().cast<double>();
  Matrix<double> sum = -expected;
  for (Index h = 0; h < each.dmixing.heads(); ++h) {
    sum += each.dmixing.of_head(h).dense().cast<double>();
  }
  const double error = sum.cwiseAbs().maxCoeff();
  return error == 0 ? 0 : fraction(error, kRounding * expected.cwiseAbs().maxCoeff());
}

/// Checks a form or its gradient, then times it.
/// \param bytes  function: mixing, inputs, executor -> bytes of workspace
/// \param run    function: mixing, inputs, results, options
template <class Bytes, class Run>
void time_per_head(Session& session, const Shape& shape, Index threads, const Cost& cost,
                   const MixingMatrix<float>& mixing, const Bytes& bytes, const Run& run) {
  const MixingMatrix<float> per_head = mhla::per_head(mixing, shape.heads);
  Workload<float> work(shape);
  const BatchInputs<float> in = work.inputs();
  Results shared(shape, mixing), each(shape, per_head);
  ThreadPool pool(threads);
  std::vector<std::byte, Allocator<std::byte>> memory(bytes(per_head, in, pool));
  const Call call{.workspace = memory, .executor = pool};
  session.time_gradient(
      cost, measure_peak<float>(pool),
      [&] {
        run(mixing, in, shared, call);
        benchmark::ClobberMemory();
      },
      [&] {
        run(per_head, in, each, call);
        benchmark::ClobberMemory();
      },
      [&] { return worst_of(each, shared); });
}

void bidirectional_case(Session& session, const Shape& shape, Index threads, bool gradient) {
  const auto mixing = initial_mixing<float>(shape);
  const Operator<> op;
  const Cost cost = bidirectional_cost<float>(shape, mixing);
  const Tensor<float> dout = draw<float>(shape, shape.values, 4);
  with_blocks(shape, [&](const auto& blocks) {
    time_per_head(
        session, shape, threads, gradient ? gradient_cost<float>(shape, cost) : cost, mixing,
        [&](const auto& m, const auto& in, const ExecutorRef& pool) {
          return gradient ? bidirectional_gradient_workspace_bytes(in, blocks, m, op, pool)
                          : bidirectional_workspace_bytes(in, blocks, op, pool);
        },
        [&](const auto& m, const auto& in, Results& to, const Call& call) {
          if (!gradient) return bidirectional(in, blocks, m, op, to.out, call);
          bidirectional_gradient(in, blocks, m, op, dout, to.gradients(), {.mixing = to.dmixing},
                                 call);
        });
  });
}

void causal_case(Session& session, const Shape& shape, Index threads, bool gradient) {
  const Contiguous blocks(shape.tokens(), shape.block_length());
  const auto op = language_operator(shape.width);
  const Cost cost = causal_cost<float>(shape);
  const Tensor<float> dout = draw<float>(shape, shape.values, 4);
  time_per_head(
      session, shape, threads, gradient ? gradient_cost<float>(shape, cost) : cost,
      uniform_causal<float>(blocks.blocks()),
      [&](const auto& m, const auto& in, const ExecutorRef& pool) {
        return gradient ? causal_gradient_workspace_bytes(in, blocks, m, op, pool)
                        : causal_workspace_bytes(in, blocks, op, pool);
      },
      [&](const auto& m, const auto& in, Results& to, const Call& call) {
        if (!gradient) return causal(in, blocks, m, op, to.out, call);
        causal_gradient(in, blocks, m, op, dout, to.gradients(), {.mixing = to.dmixing}, call);
      });
}

void register_shape(const Shape& shape, auto run) {
  for_each_thread_count(shape, [&](Index threads) {
    register_case("PerHead", "float", shape, threads,
                  [=](Session& s) { run(s, shape, threads, false); });
    register_case("PerHeadBackward", "float", shape, threads,
                  [=](Session& s) { run(s, shape, threads, true); });
  });
}

const bool kRegistered = [] {
  for (const Shape& s : bidirectional_shapes()) {
    if (s.heads > 1) register_shape(s, bidirectional_case);
  }
  for (const Shape& s : causal_shapes()) register_shape(s, causal_case);
  return true;
}();

}  // namespace
}  // namespace mhla::bench::per_head_bench
