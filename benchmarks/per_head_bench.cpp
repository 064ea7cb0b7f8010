// A mixing matrix per head, or a gated one per sequence and head, instead of one that all heads
// share, forward and gradient, on the shapes of the forward cases. All matrices have the same
// coefficients, so that results are those of the shared matrix, in the same bits. Each timed call
// follows one with the shared matrix, whose time gives of_forward. That of a gate has its products.

#include <cmath>
#include <limits>

#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/policy/gate.hpp"
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

/// A gate of factors 1 for every sequence and head, and its gradients.
struct Gate {
  MixingMatrix<float> factors, matrices, dmixing, dfactors;

  Gate(const Shape& shape, const MixingMatrix<float>& mixing)
      : factors(mixing.pattern(), shape.heads, shape.batch),
        matrices(zeros_like(factors)),
        dmixing(zeros_like(mixing)),
        dfactors(zeros_like(factors)) {
    factors.view().for_each([](float& g) { g = 1; });
  }
};

/// Error over allowed error: bits of tensors, and rounding of the sum of dm over its matrices.
double worst_of(const Results& each, const MixingMatrix<float>& dmixing, const Results& shared) {
  constexpr double kWrong = std::numeric_limits<double>::infinity(), kRounding = 1e-4;
  if (each.out.data() != shared.out.data() || each.dq.data() != shared.dq.data() ||
      each.dk.data() != shared.dk.data() || each.dv.data() != shared.dv.data()) {
    return kWrong;
  }
  const Matrix<double> expected = shared.dmixing.dense().cast<double>();
  Matrix<double> sum = -expected;
  for (Index n = 0; n < dmixing.matrices(); ++n) sum += dmixing.matrix(n).dense().cast<double>();
  const double error = sum.cwiseAbs().maxCoeff();
  return error == 0 ? 0 : fraction(error, kRounding * expected.cwiseAbs().maxCoeff());
}

/// What a case times.
struct Kind {
  bool gate;  // a matrix per sequence and head, by factors; else a matrix per head
  bool gradient;
};

/// Checks a form or its gradient, then times it.
/// \param bytes  function: mixing, inputs, executor -> bytes of workspace
/// \param run    function: mixing, inputs, results, options
template <class Bytes, class Run>
void time_matrices(Session& session, const Shape& shape, Index threads, Kind kind, const Cost& cost,
                   const MixingMatrix<float>& mixing, const Bytes& bytes, const Run& run) {
  Gate gate(shape, mixing);
  const MixingMatrix<float> per_head = mhla::per_head(mixing, shape.heads);
  const MixingMatrix<float>& several = kind.gate ? gate.matrices : per_head;
  Workload<float> work(shape);
  const BatchInputs<float> in = work.inputs();
  Results shared(shape, mixing), each(shape, several);
  ThreadPool pool(threads);
  std::vector<std::byte, Allocator<std::byte>> memory(bytes(several, in, pool));
  const Call call{.workspace = memory, .executor = pool};
  session.time_gradient(
      kind.gradient ? gradient_cost<float>(shape, cost) : cost, measure_peak<float>(pool),
      [&] {
        run(mixing, in, shared, call);
        benchmark::ClobberMemory();
      },
      [&] {
        if (kind.gate) gate_mixing(mixing, gate.factors, gate.matrices);
        if (kind.gate && kind.gradient) each.dmixing.view().for_each([](float& d) { d = 0; });
        run(several, in, each, call);
        if (kind.gate && kind.gradient) {
          gate_mixing_adjoint(mixing, gate.factors, each.dmixing,
                              {.mixing = gate.dmixing, .gate = gate.dfactors});
        }
        benchmark::ClobberMemory();
      },
      [&] { return worst_of(each, kind.gate ? gate.dmixing : each.dmixing, shared); });
}

void bidirectional_case(Session& session, const Shape& shape, Index threads, Kind kind) {
  const auto mixing = initial_mixing<float>(shape);
  const Operator<> op;
  const Cost cost = bidirectional_cost<float>(shape, mixing);
  const Tensor<float> dout = draw<float>(shape, shape.values, 4);
  with_blocks(shape, [&](const auto& blocks) {
    time_matrices(
        session, shape, threads, kind, cost, mixing,
        [&](const auto& m, const auto& in, const ExecutorRef& pool) {
          return kind.gradient ? bidirectional_gradient_workspace_bytes(in, blocks, m, op, pool)
                               : bidirectional_workspace_bytes(in, blocks, op, pool);
        },
        [&](const auto& m, const auto& in, Results& to, const Call& call) {
          if (!kind.gradient) return bidirectional(in, blocks, m, op, to.out, call);
          bidirectional_gradient(in, blocks, m, op, dout, to.gradients(), {.mixing = to.dmixing},
                                 call);
        });
  });
}

void causal_case(Session& session, const Shape& shape, Index threads, Kind kind) {
  const Contiguous blocks(shape.tokens(), shape.block_length());
  const auto op = language_operator(shape.width);
  const Cost cost = causal_cost<float>(shape);
  const Tensor<float> dout = draw<float>(shape, shape.values, 4);
  time_matrices(
      session, shape, threads, kind, cost, uniform_causal<float>(blocks.blocks()),
      [&](const auto& m, const auto& in, const ExecutorRef& pool) {
        return kind.gradient ? causal_gradient_workspace_bytes(in, blocks, m, op, pool)
                             : causal_workspace_bytes(in, blocks, op, pool);
      },
      [&](const auto& m, const auto& in, Results& to, const Call& call) {
        if (!kind.gradient) return causal(in, blocks, m, op, to.out, call);
        causal_gradient(in, blocks, m, op, dout, to.gradients(), {.mixing = to.dmixing}, call);
      });
}

void register_shape(const Shape& shape, auto run) {
  for_each_thread_count(shape, [&](Index threads) {
    const auto add = [&](const char* name, Kind kind) {
      register_case(name, "float", shape, threads,
                    [=](Session& s) { run(s, shape, threads, kind); });
    };
    add("PerHead", {.gate = false, .gradient = false});
    add("PerHeadBackward", {.gate = false, .gradient = true});
    add("Gate", {.gate = true, .gradient = false});
    add("GateBackward", {.gate = true, .gradient = true});
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
