#pragma once

/// \file
/// A dense layer on the rows of a matrix, and its adjoint.
///
///     y = x W^T + b                                        x [N,I], W [O,I], b [O], y [N,O]
///     dx += dy W      dW += dy^T x      db += sum_n dy_n
///
/// Parameters are views, so those of a whole model may be one row of numbers. Rows of all views are
/// contiguous (column stride 1) at any row stride; what is written overlaps nothing else.
/// Cost: 2*N*I*O flops, the adjoint twice that. `dense` transposes W each time, PackedDense once.

#include <algorithm>
#include <span>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/panels.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/transpose.hpp"
#include "mhla/layer/packed_dense.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes y = x W^T + b: dense(x, {weight, bias}, y).
/// \param x [N,I], y [N,O]
/// \param call  its executor splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void dense(const X& x, const DenseView<const detail::element_t<X>>& dense,
           const detail::output_t<X>& y, const Call& call = {});

/// Bytes of workspace of dense.
template <Accumulator A>
std::size_t dense_workspace_bytes(Index inputs, Index outputs);

/// The same output, to the last bit, from a packed layer.
/// \param executor  splits over rows
template <LayerInput X>
void dense(const X& x, const PackedDense<detail::element_t<X>>& dense, const detail::output_t<X>& y,
           const ExecutorRef& executor = {});

/// Adds the gradients of x and of the parameters for the gradient dy of y.
/// \param x [N,I], dy [N,O]
/// \param dx         [N,I] or absent
/// \param gradients  of the parameters; absent ones are skipped
/// \param call       its executor splits over rows; the gradients of the parameters over outputs
///                   and chunks of rows, whose sums are added in order
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void dense_adjoint(const X& x, const DenseView<const detail::element_t<X>>& dense,
                   const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                   const DenseView<detail::element_t<X>>& gradients, const Call& call = {});

/// Bytes of workspace of dense_adjoint: the weight and the sums of its gradient.
template <Accumulator A>
std::size_t dense_adjoint_workspace_bytes(Index rows, Index inputs, Index outputs);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// The gradients of the parameters, in about kPieces pieces of at most kOutputs outputs and a chunk
/// of rows. With more than one chunk, each has its own sums in the workspace.
template <Accumulator A>
class DenseGradient {
  static constexpr Index kOutputs = 256, kPieces = 16, kLeastRows = 256;
  static constexpr Index kRows = 128;  // that a product sums before it stores
  static constexpr Index kStride = unaliased_stride<A>(kRows);

 public:
  DenseGradient(const char* function, Arena& arena, Index rows, Index inputs, Index outputs)
      : inputs_(inputs),
        outputs_(outputs),
        slices_(ceil_div(outputs, kOutputs)),
        chunks_(rows, std::max<Index>(1, kPieces / std::max<Index>(1, slices_)), kLeastRows),
        partial_(chunks_.count() > 1 ? chunks_.count() : 0),
        weight_(arena.take<A>(function, {partial_, outputs, inputs})),
        bias_(arena.take<A>(function, {partial_, outputs})),
        transposed_(arena.take<A>(function, {chunks_.count() * slices_, kOutputs, kStride})) {}

  void add(MatrixView<const A> x, MatrixView<const A> dy, DenseView<A> gradients,
           const ExecutorRef& executor) {
    const bool want_weight = !gradients.weight.absent(), want_bias = !gradients.bias.empty();
    if (!want_weight && !want_bias) return;
    executor.for_each(chunks_.count() * slices_, [&](Index piece, Index /*worker*/) {
      const Index chunk = piece / slices_, slice = piece % slices_;
      DenseView<A> sums = gradients;
      if (partial_ > 0) {
        if (want_weight) sums.weight = {weight_of(chunk), outputs_, inputs_, inputs_};
        if (want_bias) sums.bias = {bias_of(chunk), static_cast<std::size_t>(outputs_)};
      }
      add_piece(x, dy, sums, chunk, outputs_ * slice / slices_, outputs_ * (slice + 1) / slices_,
                transposed_ + piece * kOutputs * kStride);
    });
    if (partial_ == 0) return;
    if (want_bias) add_rows_to(bias_, outputs_, partial_, gradients.bias.data(), outputs_);
    if (!want_weight) return;
    for_each_layer_strip(outputs_, executor, [&](Index begin, Index count) {
      for (Index o = begin; o < begin + count; ++o) {
        add_rows_to(weight_ + o * inputs_, outputs_ * inputs_, partial_, gradients.weight.row(o),
                    inputs_);
      }
    });
  }

 private:
  A* weight_of(Index chunk) const { return weight_ + chunk * outputs_ * inputs_; }
  A* bias_of(Index chunk) const { return bias_ + chunk * outputs_; }

  /// Outputs [first, last) over the rows of a chunk, some rows at a time.
  /// \param transposed  room for [outputs, kRows]
  void add_piece(MatrixView<const A> x, MatrixView<const A> dy, DenseView<A> sums, Index chunk,
                 Index first, Index last, A* transposed) const {
    const Index end = chunks_.end(chunk);
    if (partial_ > 0 && !sums.bias.empty()) {
      std::fill(sums.bias.begin() + first, sums.bias.begin() + last, A(0));
    }
    for (Index begin = chunks_.begin(chunk); begin < end; begin += kRows) {
      const MatrixView<const A> from(dy.row(begin) + first, std::min(kRows, end - begin),
                                     last - first, dy.row_stride);
      if (!sums.bias.empty()) {
        add_rows_to(from.data, from.row_stride, from.rows, sums.bias.data() + first, from.cols);
      }
      if (sums.weight.absent()) continue;
      const bool start = partial_ > 0 && begin == chunks_.begin(chunk);
      transpose(from, transposed, kStride);
      add_products({transposed, from.cols, from.rows, kStride}, x.middle_rows(begin, from.rows),
                   start ? Start::kZero : Start::kTarget,
                   sums.weight.middle_rows(first, from.cols));
    }
  }

  /// dW (+)= dy^T x, panel by panel: rows of x may be pages apart and share the sets of a cache.
  static void add_products(MatrixView<const A> dy, MatrixView<const A> x, Start start,
                           MatrixView<A> dweight) {
    alignas(kBufferAlignment) A panel[kRows * kPanel<A>];
    for (Index col = 0; col < x.cols; col += kPanel<A>) {
      const Index cols = std::min(kPanel<A>, x.cols - col);
      for (Index r = 0; r < x.rows; ++r) std::copy_n(x.row(r) + col, cols, panel + r * kPanel<A>);
      multiply<A>({.out = {dweight.data + col, dweight.row_stride},
                   .a = dy,
                   .b = {panel, kPanel<A>},
                   .cols = cols,
                   .start = start});
    }
  }

  Index inputs_, outputs_;
  Index slices_;
  RowChunks chunks_;
  Index partial_;  // chunks with sums of their own
  A* weight_;      // [partial, O, I]
  A* bias_;        // [partial, O]
  A* transposed_;  // [pieces, kOutputs, kStride]
};

template <Accumulator A>
struct DenseAdjointMemory {
  Panels<A> weight;  // W [O,I]
  DenseGradient<A> gradient;

  DenseAdjointMemory(const char* function, Arena& arena, Index rows, Index inputs, Index outputs)
      : weight(function, arena, outputs, inputs),
        gradient(function, arena, rows, inputs, outputs) {}
};

template <Accumulator A>
void expect_dense_gradients(const char* function, const char* weight, const char* bias,
                            const DenseView<A>& gradients, const DenseView<const A>& dense) {
  expect_rows_or_none(function, weight, gradients.weight, dense.weight.rows, dense.weight.cols);
  expect_elements_or_none(function, bias, gradients.bias.size(), dense.weight.rows);
}

}  // namespace detail

template <Accumulator A>
std::size_t dense_workspace_bytes(Index inputs, Index outputs) {
  return packed_dense_bytes<A>(inputs, outputs);
}

template <LayerInput X>
void dense(const X& input, const PackedDense<detail::element_t<X>>& dense,
           const detail::output_t<X>& y, const ExecutorRef& executor) {
  constexpr const char* kName = "dense";
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, dense.inputs());
  detail::expect_rows(kName, "y", y, x.rows, dense.outputs());
  detail::for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
    dense.apply(x.middle_rows(begin, count), y.middle_rows(begin, count));
  });
}

template <LayerInput X>
void dense(const X& input, const DenseView<const detail::element_t<X>>& parameters,
           const detail::output_t<X>& y, const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "dense";
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, -1);
  detail::expect_dense(kName, "weight", "bias", parameters, x.cols);
  detail::expect_rows(kName, "y", y, x.rows, parameters.weight.rows);
  const detail::Scratch scratch(kName, call.workspace, dense_workspace_bytes<A>(x.cols, y.cols));
  dense(x, PackedDense<A>(scratch.bytes(), parameters), y, call.executor);
}

template <Accumulator A>
std::size_t dense_adjoint_workspace_bytes(Index rows, Index inputs, Index outputs) {
  return detail::counted_bytes([&](detail::Arena& arena) {
    return detail::DenseAdjointMemory<A>("dense_adjoint", arena, rows, inputs, outputs);
  });
}

template <LayerInput X>
void dense_adjoint(const X& input, const DenseView<const detail::element_t<X>>& dense,
                   const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                   const DenseView<detail::element_t<X>>& gradients, const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "dense_adjoint";
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, -1);
  detail::expect_dense(kName, "weight", "bias", dense, x.cols);
  detail::expect_rows(kName, "dy", dy, x.rows, dense.weight.rows);
  detail::expect_rows_or_none(kName, "dx", dx, x.rows, x.cols);
  detail::expect_dense_gradients(kName, "gradient of weight", "gradient of bias", gradients, dense);
  detail::Scratch scratch(kName, call.workspace,
                          dense_adjoint_workspace_bytes<A>(x.rows, x.cols, dy.cols));
  detail::DenseAdjointMemory<A> memory(kName, scratch.arena(), x.rows, x.cols, dy.cols);
  if (!dx.absent()) {
    memory.weight.pack(dense.weight);
    detail::for_each_layer_strip(x.rows, call.executor, [&](Index begin, Index count) {
      memory.weight.multiply(detail::Start::kTarget, dy.middle_rows(begin, count),
                             dx.middle_rows(begin, count));
    });
  }
  memory.gradient.add(x, dy, gradients, call.executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
