// Mixing matrices per head, gated per sequence and head, and by distance, on the shapes of the
// forward cases. Coefficients are those of a matrix that all heads share, so results have its bits.
// A timed call makes its matrices. A gradient adds those of the gate or the table, too. Each call
// follows one with the shared matrix, whose time gives of_forward.

#include <cmath>
#include <limits>

#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/policy/distance_derivatives.hpp"
#include "mhla/policy/gate.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::matrices_bench {
namespace {

constexpr double kRounding = 1e-4;  // of sums of gradients, relative to the largest

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
  bool same_bits(const Results& other) const {
    return out.data() == other.out.data() && dq.data() == other.dq.data() &&
           dk.data() == other.dk.data() && dv.data() == other.dv.data();
  }
};

/// Error over allowed error of the sum of dm over its matrices.
double worst_sum(const MixingMatrix<float>& dm, const MixingMatrix<float>& shared) {
  const Matrix<double> expected = shared.dense().cast<double>();
  Matrix<double> sum = -expected;
  for (Index n = 0; n < dm.matrices(); ++n) sum += dm.matrix(n).dense().cast<double>();
  const double error = sum.cwiseAbs().maxCoeff();
  return error == 0 ? 0 : fraction(error, kRounding * expected.cwiseAbs().maxCoeff());
}

/// A matrix per head.
struct PerHead {
  MixingMatrix<float> shared, matrices;

  PerHead(const Shape& shape, const MixingMatrix<float>& mixing)
      : shared(mixing), matrices(per_head(mixing, shape.heads)) {}
  void make() {}
  void add_gradients(MixingMatrix<float>& /*dm*/) {}
  double worst(const MixingMatrix<float>& dm, const MixingMatrix<float>& expected) const {
    return worst_sum(dm, expected);
  }
};

/// A matrix per sequence and head, by a gate of factors 1.
struct Gate {
  MixingMatrix<float> shared, factors, matrices, dmixing, dfactors;

  Gate(const Shape& shape, const MixingMatrix<float>& mixing)
      : shared(mixing),
        factors(mixing.pattern(), shape.heads, shape.batch),
        matrices(zeros_like(factors)),
        dmixing(zeros_like(mixing)),
        dfactors(zeros_like(factors)) {
    factors.view().for_each([](float& g) { g = 1; });
  }
  void make() { gate_mixing(shared, factors, matrices); }
  void add_gradients(MixingMatrix<float>& dm) {
    gate_mixing_adjoint(shared, factors, dm, {.mixing = dmixing, .gate = dfactors});
    dm.view().for_each([](float& d) { d = 0; });
  }
  double worst(const MixingMatrix<float>& /*dm*/, const MixingMatrix<float>& expected) const {
    return worst_sum(dmixing, expected);
  }
};

/// A matrix of a table of all offsets, with the pattern of `mixing`.
struct Distance {
  GridShape blocks;
  DistanceMixing<float> table, dtable;
  MixingMatrix<float> shared, matrices;

  Distance(const Shape& shape, const MixingMatrix<float>& mixing)
      : blocks(Grid(shape.grid, shape.block).block_grid()),
        table(distance_locality<float>(offsets())),
        dtable(offsets()),
        shared(distance_matrix(table, blocks, mixing.pattern())),
        matrices(shared) {}
  GridShape offsets() const { return {2 * blocks[0] - 1, 2 * blocks[1] - 1, 2 * blocks[2] - 1}; }
  void make() { matrices = distance_matrix(table, blocks, shared.pattern()); }
  void add_gradients(MixingMatrix<float>& dm) {
    distance_matrix_adjoint(table, blocks, dm, dtable);
    dm.view().for_each([](float& d) { d = 0; });
  }
  /// Compares the derivative along a direction by the gradient of the table and by that of the
  /// matrix.
  double worst(const MixingMatrix<float>& /*dm*/, const MixingMatrix<float>& expected) const {
    DistanceMixing<float> along(offsets());
    double of_table = 0, of_matrix = 0, terms = 0;
    for (std::size_t n = 0; n < along.storage().size(); ++n) {
      along.storage()[n] = element(5, n);
      of_table += exactly(along.storage()[n]) * exactly(dtable.storage()[n]);
    }
    const auto tangent = distance_matrix_tangent(table, along, blocks, shared.pattern());
    for (std::size_t n = 0; n < tangent.storage().size(); ++n) {
      const double term = exactly(tangent.storage()[n]) * exactly(expected.storage()[n]);
      of_matrix += term;
      terms += std::abs(term);
    }
    const double error = std::abs(of_table - of_matrix);
    return error == 0 ? 0 : fraction(error, kRounding * terms);
  }
};

/// Checks a form or its gradient, then times it.
/// \tparam Made  PerHead, Gate or Distance
/// \param bytes  function: mixing, inputs, executor -> bytes of workspace
/// \param run    function: mixing, inputs, results, options
template <class Made, class Bytes, class Run>
void time_matrices(Session& session, const Shape& shape, Index threads, bool gradient,
                   const Cost& cost, const MixingMatrix<float>& mixing, const Bytes& bytes,
                   const Run& run) {
  Made made(shape, mixing);
  Workload<float> work(shape);
  const BatchInputs<float> in = work.inputs();
  Results shared(shape, made.shared), each(shape, made.matrices);
  ThreadPool pool(threads);
  std::vector<std::byte, Allocator<std::byte>> memory(bytes(made.matrices, in, pool));
  const Call call{.workspace = memory, .executor = pool};
  session.time_gradient(
      gradient ? gradient_cost<float>(shape, cost) : cost, measure_peak<float>(pool),
      [&] {
        run(made.shared, in, shared, call);
        benchmark::ClobberMemory();
      },
      [&] {
        made.make();
        run(made.matrices, in, each, call);
        if (gradient) made.add_gradients(each.dmixing);
        benchmark::ClobberMemory();
      },
      [&] {
        if (!each.same_bits(shared)) return std::numeric_limits<double>::infinity();
        return made.worst(each.dmixing, shared.dmixing);
      });
}

template <class Made>
void bidirectional_case(Session& session, const Shape& shape, Index threads, bool gradient) {
  const auto mixing = initial_mixing<float>(shape);
  const Operator<> op;
  const Cost cost = bidirectional_cost<float>(shape, mixing);
  const Tensor<float> dout = draw<float>(shape, shape.values, 4);
  with_blocks(shape, [&](const auto& blocks) {
    time_matrices<Made>(
        session, shape, threads, gradient, cost, mixing,
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

template <class Made>
void causal_case(Session& session, const Shape& shape, Index threads, bool gradient) {
  const Contiguous blocks(shape.tokens(), shape.block_length());
  const auto op = language_operator(shape.width);
  const Cost cost = causal_cost<float>(shape);
  const Tensor<float> dout = draw<float>(shape, shape.values, 4);
  time_matrices<Made>(
      session, shape, threads, gradient, cost, uniform_causal<float>(blocks.blocks()),
      [&](const auto& m, const auto& in, const ExecutorRef& pool) {
        return gradient ? causal_gradient_workspace_bytes(in, blocks, m, op, pool)
                        : causal_workspace_bytes(in, blocks, op, pool);
      },
      [&](const auto& m, const auto& in, Results& to, const Call& call) {
        if (!gradient) return causal(in, blocks, m, op, to.out, call);
        causal_gradient(in, blocks, m, op, dout, to.gradients(), {.mixing = to.dmixing}, call);
      });
}

template <class Made>
void register_kind(const std::string& name) {
  const auto add = [&](const Shape& shape, auto run) {
    for_each_thread_count(shape, [&](Index threads) {
      register_case(name, "float", shape, threads,
                    [=](Session& s) { run(s, shape, threads, false); });
      register_case(name + "Backward", "float", shape, threads,
                    [=](Session& s) { run(s, shape, threads, true); });
    });
  };
  for (const Shape& s : bidirectional_shapes()) {
    if (s.heads > 1) add(s, bidirectional_case<Made>);
  }
  for (const Shape& s : causal_shapes()) add(s, causal_case<Made>);
}

const bool kRegistered = [] {
  register_kind<PerHead>("PerHead");
  register_kind<Gate>("Gate");
  register_kind<Distance>("Distance");
  return true;
}();

}  // namespace
}  // namespace mhla::bench::matrices_bench
