#pragma once

/// \file
/// The gated perceptron of language models, also called SwiGLU, and its adjoint.
///
///     gate = x Wg^T + bg,   up = x Wu^T + bu,   hidden = silu(gate) * up,   y = hidden Wd^T + bd
///                           x [N,I], Wg, Wu [H,I], gate, up, hidden [N,H], Wd [O,H], y [N,O]
///
/// activation.hpp defines silu. The caller keeps gate and up for the adjoint, but not hidden. The
/// adjoint computes hidden from an exponential that the slope of silu needs anyway, so one `hidden`
/// serves all layers of a model. Rows of all views are contiguous (column stride 1) at any row
/// stride. Outputs overlap nothing else.
/// Cost: 2*N*H*(2I+O) flops and N*H exponentials, the adjoint twice the flops.
/// Source: Shazeer, arXiv:2002.05202.

#include <string>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/gate.hpp"
#include "mhla/layer/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {

/// The parameters of the gated perceptron (T const) or their gradients.
template <class T>
struct GatedMlpView {
  DenseView<T> gate{};  ///< [H,I] and [H] or empty
  DenseView<T> up{};    ///< [H,I] and [H] or empty
  DenseView<T> down{};  ///< [O,H] and [O] or empty

  constexpr operator GatedMlpView<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {gate, up, down};
  }
};

/// Writes gate, up, hidden and y.
/// \param call  its executor splits over rows and outputs
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void gated_mlp(const X& x, const GatedMlpView<const detail::element_t<X>>& parameters,
               const detail::output_t<X>& gate, const detail::output_t<X>& up,
               const detail::output_t<X>& hidden, const detail::output_t<X>& y,
               const Call& call = {});

/// The three layers with their weights packed.
template <Accumulator A>
struct PackedGatedMlp {
  PackedDense<A> gate, up, down;
};

/// Writes the same outputs, to the last bit, from packed layers.
/// \param executor  splits over rows and outputs
template <LayerInput X>
void gated_mlp(const X& x, const PackedGatedMlp<detail::element_t<X>>& parameters,
               const detail::output_t<X>& gate, const detail::output_t<X>& up,
               const detail::output_t<X>& hidden, const detail::output_t<X>& y,
               const ExecutorRef& executor = {});

/// Bytes of workspace of gated_mlp.
template <Accumulator A>
std::size_t gated_mlp_workspace_bytes(Index inputs, Index hidden, Index outputs);

/// Adds the gradients of x and of the parameters for the gradient dy of y.
/// \param gate, up   [N,H] as gated_mlp wrote them
/// \param dx         [N,I] or absent
/// \param gradients  of the parameters; absent ones are skipped
/// \param call       its executor splits as that of dense_adjoint
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void gated_mlp_adjoint(const X& x, const GatedMlpView<const detail::element_t<X>>& parameters,
                       const detail::input_t<X>& gate, const detail::input_t<X>& up,
                       const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                       const GatedMlpView<detail::element_t<X>>& gradients, const Call& call = {});

/// Bytes of workspace of gated_mlp_adjoint: 3*N*H numbers, the weights and the sums of
/// their gradients.
template <Accumulator A>
std::size_t gated_mlp_adjoint_workspace_bytes(Index rows, Index inputs, Index hidden,
                                              Index outputs);

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator A>
struct GatedMlpAdjointMemory {
  Rows<A> dgate, dup, hidden;  // [N,H]
  Panels<A> gate, up;          // their weights [H,I]
  DenseGradient<A> inner;      // of gate, then of up
  DenseAdjointMemory<A> down;

  GatedMlpAdjointMemory(const char* function, Arena& arena, Index rows, Index inputs, Index width,
                        Index outputs)
      : dgate(function, arena, rows, width),
        dup(function, arena, rows, width),
        hidden(function, arena, rows, width),
        gate(function, arena, width, inputs),
        up(function, arena, width, inputs),
        inner(function, arena, rows, inputs, width),
        down(function, arena, rows, width, outputs) {}
};

/// The adjoint of hidden = silu(gate) * up for a packet, with one exponential.
template <class P>
struct GateAdjoint {
  P dgate, dup, hidden;

  MHLA_INLINE GateAdjoint(P gate, P up, P dhidden) {
    using namespace Eigen::internal;
    const Logistic<P> l(gate);
    const P value = pmul(gate, l.s);
    dgate = pmul(pmul(dhidden, up), multiply_add(value, l.rest, l.s));
    dup = pmul(dhidden, value);
    hidden = pmul(value, up);
  }
};

/// Writes dgate, dup and hidden of a row. On entry, dup is the gradient of hidden.
template <Accumulator A>
void multiply_gate_adjoint(const A* gate, const A* up, A* dgate, A* dup, A* hidden, Index count) {
  using P = Packet<A>;
  Index i = 0;
  for (; i + kLanes<P> <= count; i += kLanes<P>) {
    const GateAdjoint<P> at(load<A, P>(gate + i), load<A, P>(up + i), load<A, P>(dup + i));
    store(dgate + i, at.dgate);
    store(dup + i, at.dup);
    store(hidden + i, at.hidden);
  }
  if (i == count) return;
  const Index tail = count - i;
  const GateAdjoint<P> at(load_partial<P>(gate + i, tail, A(0)),
                          load_partial<P>(up + i, tail, A(0)),
                          load_partial<P>(dup + i, tail, A(0)));
  store_partial(dgate + i, at.dgate, tail);
  store_partial(dup + i, at.dup, tail);
  store_partial(hidden + i, at.hidden, tail);
}

/// Throws unless the arguments of gated_mlp and its adjoint fit each other.
template <Accumulator A, class T>
void expect_gated_mlp(const char* function, const MatrixView<const A>& x,
                      const GatedMlpView<const A>& parameters, const MatrixView<T>& gate,
                      const MatrixView<T>& up) {
  const Index width = parameters.gate.weight.rows;
  expect_rows(function, "x", x, -1, -1);
  expect_dense(function, "gate weight", "gate bias", parameters.gate, x.cols);
  expect_rows(function, "up weight", parameters.up.weight, width, x.cols);
  expect_elements_or_none(function, "up bias", parameters.up.bias.size(), width);
  expect_dense(function, "down weight", "down bias", parameters.down, width);
  expect_rows(function, "gate", gate, x.rows, width);
  expect_rows(function, "up", up, x.rows, width);
}

/// Throws unless a packed layer has `expected` inputs or outputs, as the gate has.
inline void expect_sizes_of_gate(const char* argument, Index count, const char* what,
                                 Index expected, const char* of_gate) {
  if (count == expected) return;
  fail_shape("gated_mlp", argument, "has " + std::to_string(count) + " " + what,
             std::to_string(expected) + " (the " + of_gate + " of gate)");
}

}  // namespace detail

template <Accumulator A>
std::size_t gated_mlp_workspace_bytes(Index inputs, Index hidden, Index outputs) {
  return 2 * packed_dense_bytes<A>(inputs, hidden) + packed_dense_bytes<A>(hidden, outputs);
}

template <LayerInput X>
void gated_mlp(const X& input, const PackedGatedMlp<detail::element_t<X>>& parameters,
               const detail::output_t<X>& gate, const detail::output_t<X>& up,
               const detail::output_t<X>& hidden, const detail::output_t<X>& y,
               const ExecutorRef& executor) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "gated_mlp";
  const detail::input_t<X> x(input);
  const Index inputs = parameters.gate.inputs(), width = parameters.gate.outputs();
  detail::expect_rows(kName, "x", x, -1, inputs);
  detail::expect_sizes_of_gate("up", parameters.up.inputs(), "inputs", inputs, "inputs");
  detail::expect_sizes_of_gate("up", parameters.up.outputs(), "outputs", width, "outputs");
  detail::expect_sizes_of_gate("down", parameters.down.inputs(), "inputs", width, "outputs");
  detail::expect_rows(kName, "gate", gate, x.rows, width);
  detail::expect_rows(kName, "up", up, x.rows, width);
  detail::expect_rows(kName, "hidden", hidden, x.rows, width);
  detail::expect_rows(kName, "y", y, x.rows, parameters.down.outputs());
  if (detail::fewer_strips_than_workers(x.rows, executor)) {
    parameters.gate.apply(x, gate, executor);
    parameters.up.apply(x, up, executor);
    mhla::gate(up, gate, hidden, GateFunction::kSilu, executor);
    return parameters.down.apply(hidden, y, executor);
  }
  detail::for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
    const detail::input_t<X> strip = x.middle_rows(begin, count);
    const MatrixView<A> g = gate.middle_rows(begin, count), u = up.middle_rows(begin, count),
                        h = hidden.middle_rows(begin, count);
    parameters.gate.apply(strip, g);
    parameters.up.apply(strip, u);
    mhla::gate(u, g, h);
    parameters.down.apply(h, y.middle_rows(begin, count));
  });
}

template <LayerInput X>
void gated_mlp(const X& input, const GatedMlpView<const detail::element_t<X>>& parameters,
               const detail::output_t<X>& gate, const detail::output_t<X>& up,
               const detail::output_t<X>& hidden, const detail::output_t<X>& y, const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "gated_mlp";
  const detail::input_t<X> x(input);
  const Index width = parameters.gate.weight.rows;
  detail::expect_gated_mlp<A>(kName, x, parameters, gate, up);
  detail::expect_rows(kName, "hidden", hidden, x.rows, width);
  detail::expect_rows(kName, "y", y, x.rows, parameters.down.weight.rows);
  const detail::Scratch scratch(kName, call.workspace,
                                gated_mlp_workspace_bytes<A>(x.cols, width, y.cols));
  const std::size_t share = packed_dense_bytes<A>(x.cols, width);
  const PackedDense<A> one(scratch.bytes().first(share), parameters.gate, call.executor);
  const PackedDense<A> two(scratch.bytes().subspan(share, share), parameters.up, call.executor);
  const PackedDense<A> three(scratch.bytes().subspan(2 * share), parameters.down, call.executor);
  gated_mlp(x, PackedGatedMlp<A>{one, two, three}, gate, up, hidden, y, call.executor);
}

template <Accumulator A>
std::size_t gated_mlp_adjoint_workspace_bytes(Index rows, Index inputs, Index hidden,
                                              Index outputs) {
  return detail::counted_bytes([&](detail::Arena& arena) {
    return detail::GatedMlpAdjointMemory<A>("gated_mlp_adjoint", arena, rows, inputs, hidden,
                                            outputs);
  });
}

template <LayerInput X>
void gated_mlp_adjoint(const X& input, const GatedMlpView<const detail::element_t<X>>& parameters,
                       const detail::input_t<X>& gate, const detail::input_t<X>& up,
                       const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                       const GatedMlpView<detail::element_t<X>>& gradients, const Call& call) {
  using A = detail::element_t<X>;
  using detail::Start;
  constexpr const char* kName = "gated_mlp_adjoint";
  const detail::input_t<X> x(input);
  const Index width = parameters.gate.weight.rows;
  detail::expect_gated_mlp<A>(kName, x, parameters, gate, up);
  detail::expect_rows(kName, "dy", dy, x.rows, parameters.down.weight.rows);
  detail::expect_rows_or_none(kName, "dx", dx, x.rows, x.cols);
  detail::expect_dense_gradients(kName, "gradient of gate weight", "gradient of gate bias",
                                 gradients.gate, parameters.gate);
  detail::expect_dense_gradients(kName, "gradient of up weight", "gradient of up bias",
                                 gradients.up, parameters.up);
  detail::expect_dense_gradients(kName, "gradient of down weight", "gradient of down bias",
                                 gradients.down, parameters.down);
  detail::Scratch scratch(kName, call.workspace,
                          gated_mlp_adjoint_workspace_bytes<A>(x.rows, x.cols, width, dy.cols));
  detail::GatedMlpAdjointMemory<A> memory(kName, scratch.arena(), x.rows, x.cols, width, dy.cols);
  const MatrixView<A> dgate = memory.dgate.matrix(x.rows, width),
                      dup = memory.dup.matrix(x.rows, width),
                      hidden = memory.hidden.matrix(x.rows, width);
  detail::pack_weight(parameters.down.weight, memory.down.weight, call.executor);
  if (!dx.absent()) {
    detail::pack_weight(parameters.gate.weight, memory.gate, call.executor);
    detail::pack_weight(parameters.up.weight, memory.up, call.executor);
  }
  detail::for_each_layer_strip(x.rows, call.executor, [&](Index begin, Index count) {
    const MatrixView<A> dg = dgate.middle_rows(begin, count), du = dup.middle_rows(begin, count);
    memory.down.weight.multiply(Start::kZero, dy.middle_rows(begin, count), du);
    for (Index r = 0; r < count; ++r) {
      detail::multiply_gate_adjoint(gate.row(begin + r), up.row(begin + r), dg.row(r), du.row(r),
                                    hidden.row(begin + r), width);
    }
    if (dx.absent()) return;
    const MatrixView<A> to = dx.middle_rows(begin, count);
    memory.gate.multiply(Start::kTarget, dg, to);
    memory.up.multiply(Start::kTarget, du, to);
  });
  memory.down.gradient.add(hidden, dy, gradients.down, call.executor);
  memory.inner.add(x, dgate, gradients.gate, call.executor);
  memory.inner.add(x, dup, gradients.up, call.executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
