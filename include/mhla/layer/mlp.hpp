#pragma once

/// \file
/// The two-layer perceptron of a transformer block, and its adjoint.
///
///     pre = x W1^T + b1,   hidden = gelu(pre),   y = hidden W2^T + b2
///                                    x [N,I], W1 [H,I], pre, hidden [N,H], W2 [O,H], y [N,O]
///
/// gelu is Gelu (the tanh form) or ErfGelu of activation.hpp. The caller keeps pre and hidden for
/// the adjoint. Rows of all views are contiguous (column stride 1) at any row stride. Outputs
/// overlap nothing else. Cost: 2*N*H*(I+O) flops and N*H exponentials, the adjoint twice that.
/// Source: Hendrycks and Gimpel, arXiv:1606.08415.

#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The parameters of the perceptron (T const) or their gradients.
template <class T>
struct MlpView {
  DenseView<T> first{};   ///< [H,I] and [H] or empty
  DenseView<T> second{};  ///< [O,H] and [O] or empty

  constexpr operator MlpView<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {first, second};
  }
};

/// Writes pre, hidden and y.
/// \tparam G    Gelu or ErfGelu
/// \param call  its executor splits over rows and outputs
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <class G = Gelu, LayerInput X>
void mlp(const X& x, const MlpView<const detail::element_t<X>>& parameters,
         const detail::output_t<X>& pre, const detail::output_t<X>& hidden,
         const detail::output_t<X>& y, const Call& call = {});

/// Both layers with their weights packed.
template <Accumulator A>
struct PackedMlp {
  PackedDense<A> first, second;
};

/// Writes the same outputs, to the last bit, from packed layers.
/// \param executor  splits over rows and outputs
template <class G = Gelu, LayerInput X>
void mlp(const X& x, const PackedMlp<detail::element_t<X>>& parameters,
         const detail::output_t<X>& pre, const detail::output_t<X>& hidden,
         const detail::output_t<X>& y, const ExecutorRef& executor = {});

/// Bytes of workspace of mlp.
template <Accumulator A>
std::size_t mlp_workspace_bytes(Index inputs, Index hidden, Index outputs);

/// Adds the gradients of x and of the parameters for the gradient dy of y.
/// \param pre, hidden  [N,H] as mlp wrote them
/// \param dx           [N,I] or absent
/// \param gradients    of the parameters; absent ones are skipped
/// \param call         its executor splits as that of dense_adjoint
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <class G = Gelu, LayerInput X>
void mlp_adjoint(const X& x, const MlpView<const detail::element_t<X>>& parameters,
                 const detail::input_t<X>& pre, const detail::input_t<X>& hidden,
                 const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                 const MlpView<detail::element_t<X>>& gradients, const Call& call = {});

/// Bytes of workspace of mlp_adjoint: N*H numbers, the weights and the sums of their gradients.
template <Accumulator A>
std::size_t mlp_adjoint_workspace_bytes(Index rows, Index inputs, Index hidden, Index outputs);

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator A>
struct MlpAdjointMemory {
  Index stride;
  A* dpre;  // [N, stride]
  DenseAdjointMemory<A> first, second;

  MlpAdjointMemory(const char* function, Arena& arena, Index rows, Index inputs, Index hidden,
                   Index outputs)
      : stride(unaliased_stride<A>(hidden)),
        dpre(arena.take<A>(function, {rows, stride})),
        first(function, arena, rows, inputs, hidden),
        second(function, arena, rows, hidden, outputs) {}
};

/// Throws unless the arguments of mlp and its adjoint fit each other.
template <Accumulator A, class T>
void expect_mlp(const char* function, const MatrixView<const A>& x,
                const MlpView<const A>& parameters, const MatrixView<T>& pre,
                const MatrixView<T>& hidden) {
  const Index width = parameters.first.weight.rows;
  expect_rows(function, "x", x, -1, -1);
  expect_dense(function, "first weight", "first bias", parameters.first, x.cols);
  expect_dense(function, "second weight", "second bias", parameters.second, width);
  expect_rows(function, "pre", pre, x.rows, width);
  expect_rows(function, "hidden", hidden, x.rows, width);
}

}  // namespace detail

template <Accumulator A>
std::size_t mlp_workspace_bytes(Index inputs, Index hidden, Index outputs) {
  return packed_dense_bytes<A>(inputs, hidden) + packed_dense_bytes<A>(hidden, outputs);
}

template <class G, LayerInput X>
void mlp(const X& input, const PackedMlp<detail::element_t<X>>& parameters,
         const detail::output_t<X>& pre, const detail::output_t<X>& hidden,
         const detail::output_t<X>& y, const ExecutorRef& executor) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "mlp";
  const auto& [first, second] = parameters;
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, first.inputs());
  if (second.inputs() != first.outputs()) {
    detail::fail_shape(kName, "second", "has " + std::to_string(second.inputs()) + " inputs",
                       std::to_string(first.outputs()) + " (the outputs of the first)");
  }
  detail::expect_rows(kName, "pre", pre, x.rows, first.outputs());
  detail::expect_rows(kName, "hidden", hidden, x.rows, first.outputs());
  detail::expect_rows(kName, "y", y, x.rows, second.outputs());
  if (detail::fewer_strips_than_workers(x.rows, executor)) {
    first.apply(x, pre, executor);
    detail::activate<G, A>(kName, pre, hidden, executor);
    return second.apply(hidden, y, executor);
  }
  detail::for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
    const MatrixView<A> p = pre.middle_rows(begin, count), h = hidden.middle_rows(begin, count);
    parameters.first.apply(x.middle_rows(begin, count), p);
    detail::activate_rows<G, A>(p, h);
    parameters.second.apply(h, y.middle_rows(begin, count));
  });
}

template <class G, LayerInput X>
void mlp(const X& input, const MlpView<const detail::element_t<X>>& parameters,
         const detail::output_t<X>& pre, const detail::output_t<X>& hidden,
         const detail::output_t<X>& y, const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "mlp";
  const auto& [first, second] = parameters;
  const detail::input_t<X> x(input);
  const Index width = first.weight.rows;
  detail::expect_mlp<A>(kName, x, parameters, pre, hidden);
  detail::expect_rows(kName, "y", y, x.rows, second.weight.rows);
  const detail::Scratch scratch(kName, call.workspace,
                                mlp_workspace_bytes<A>(x.cols, width, y.cols));
  const std::size_t share = packed_dense_bytes<A>(x.cols, width);
  const PackedDense<A> one(scratch.bytes().first(share), first, call.executor);
  const PackedDense<A> two(scratch.bytes().subspan(share), second, call.executor);
  mlp<G>(x, PackedMlp<A>{one, two}, pre, hidden, y, call.executor);
}

template <Accumulator A>
std::size_t mlp_adjoint_workspace_bytes(Index rows, Index inputs, Index hidden, Index outputs) {
  return detail::counted_bytes([&](detail::Arena& arena) {
    return detail::MlpAdjointMemory<A>("mlp_adjoint", arena, rows, inputs, hidden, outputs);
  });
}

template <class G, LayerInput X>
void mlp_adjoint(const X& input, const MlpView<const detail::element_t<X>>& parameters,
                 const detail::input_t<X>& pre, const detail::input_t<X>& hidden,
                 const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                 const MlpView<detail::element_t<X>>& gradients, const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "mlp_adjoint";
  const detail::input_t<X> x(input);
  const auto& [first, second] = parameters;
  const Index width = first.weight.rows;
  detail::expect_mlp<A>(kName, x, parameters, pre, hidden);
  detail::expect_rows(kName, "dy", dy, x.rows, second.weight.rows);
  detail::expect_rows_or_none(kName, "dx", dx, x.rows, x.cols);
  detail::expect_dense_gradients(kName, "gradient of first weight", "gradient of first bias",
                                 gradients.first, first);
  detail::expect_dense_gradients(kName, "gradient of second weight", "gradient of second bias",
                                 gradients.second, second);
  detail::Scratch scratch(kName, call.workspace,
                          mlp_adjoint_workspace_bytes<A>(x.rows, x.cols, width, dy.cols));
  detail::MlpAdjointMemory<A> memory(kName, scratch.arena(), x.rows, x.cols, width, dy.cols);
  const MatrixView<A> dpre(memory.dpre, x.rows, width, memory.stride);
  detail::pack_weight(second.weight, memory.second.weight, call.executor);
  if (!dx.absent()) detail::pack_weight(first.weight, memory.first.weight, call.executor);
  detail::for_each_layer_strip(x.rows, call.executor, [&](Index begin, Index count) {
    const MatrixView<A> strip = dpre.middle_rows(begin, count);
    memory.second.weight.multiply(detail::Start::kZero, dy.middle_rows(begin, count), strip);
    for (Index r = 0; r < count; ++r) {
      detail::update(
          strip.row(r), width, [](auto g, auto p) { return Eigen::internal::pmul(g, G::slope(p)); },
          pre.row(begin + r));
    }
    if (dx.absent()) return;
    memory.first.weight.multiply(detail::Start::kTarget, strip, dx.middle_rows(begin, count));
  });
  memory.second.gradient.add(hidden, dy, gradients.second, call.executor);
  memory.first.gradient.add(x, dpre, gradients.first, call.executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
