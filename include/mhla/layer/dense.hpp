#pragma once

/// \file
/// A dense layer on the rows of a matrix, and its adjoint.
///
///     y = x W^T + b                                        x [N,I], W [O,I], b [O], y [N,O]
///     dx += dy W      dW += dy^T x      db += sum_n dy_n
///
/// Parameters are views, so the parameters of a whole model may be one row of numbers. Rows of all
/// views are contiguous (column stride 1) at any row stride. Outputs overlap nothing else. Cost:
/// 2*N*I*O flops, the adjoint twice that. `dense` transposes W in each call, PackedDense once.

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
#include "mhla/layer/packed_dense.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes y = x W^T + b: dense(x, {weight, bias}, y).
/// \param x [N,I], y [N,O]
/// \param call  its executor splits over rows and outputs
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void dense(const X& x, const DenseView<const detail::element_t<X>>& dense,
           const detail::output_t<X>& y, const Call& call = {});

/// Bytes of workspace of dense.
template <Accumulator A>
std::size_t dense_workspace_bytes(Index inputs, Index outputs);

/// Writes the same output, to the last bit, from a packed layer.
/// \param executor  splits over rows and outputs
template <LayerInput X>
void dense(const X& x, const PackedDense<detail::element_t<X>>& dense, const detail::output_t<X>& y,
           const ExecutorRef& executor = {});

/// Adds the gradients of x and of the parameters for the gradient dy of y.
/// \param x [N,I], dy [N,O]
/// \param dx         [N,I] or absent
/// \param gradients  of the parameters; absent ones are skipped
/// \param call       its executor splits over rows; the gradients of the parameters over tiles
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void dense_adjoint(const X& x, const DenseView<const detail::element_t<X>>& dense,
                   const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                   const DenseView<detail::element_t<X>>& gradients, const Call& call = {});

/// Bytes of workspace of dense_adjoint. It holds the packed weight. For each of at most 16 tasks on
/// the gradient of the weight it holds a tile of the gradient, and some rows of x and dy.
template <Accumulator A>
std::size_t dense_adjoint_workspace_bytes(Index rows, Index inputs, Index outputs);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// The gradients of the parameters. Every element is one chain of multiply-adds over all rows in
/// order, starting from the old gradient. So tiles of dW share nothing, and their sizes change no
/// bit. A tile stays in L2 while all rows are processed, some at a time. The tile and the rows of x
/// and dy are packed.
template <Accumulator A>
class DenseGradient {
  static constexpr Index kOutputs = 192, kInputs = 384;  // of a tile of dW
  static constexpr Index kLeastOutputs = 48;
  static constexpr Index kRows = 128;   // packed at a time
  static constexpr Index kPieces = 16;  // most pieces of work, each with separate memory

 public:
  DenseGradient(const char* function, Arena& arena, Index rows, Index inputs, Index outputs)
      : inputs_(inputs),
        outputs_(outputs),
        depth_(std::min(rows, kRows)),
        widest_{Panels<A>::padded(std::min(outputs, kOutputs)),
                Panels<A>::padded(std::min(inputs, kInputs))},
        share_(widest_[0] * widest_[1] + depth_ * (widest_[0] + widest_[1])),
        memory_(arena.take<A>(function, {kPieces, share_})) {}

  void add(MatrixView<const A> x, MatrixView<const A> dy, DenseView<A> gradients,
           const ExecutorRef& executor) {
    if (x.rows == 0 || (gradients.weight.absent() && gradients.bias.empty())) return;
    const Index columns = std::max<Index>(1, ceil_div(inputs_, kInputs));
    Index outputs = kOutputs;  // of a tile: fewer if workers would lack tiles
    while (outputs > kLeastOutputs && ceil_div(outputs_, outputs) * columns < executor.workers()) {
      outputs /= 2;
    }
    const Index tiles = ceil_div(outputs_, outputs) * columns, pieces = std::min(kPieces, tiles);
    executor.for_each(pieces, [&](Index piece, Index /*worker*/) {
      for (Index t = tiles * piece / pieces; t < tiles * (piece + 1) / pieces; ++t) {
        const Index output = t / columns * outputs, input = t % columns * kInputs;
        const Index count = std::min(outputs, outputs_ - output);
        if (input == 0 && !gradients.bias.empty()) {
          add_rows_to(dy.data + output, dy.row_stride, dy.rows, gradients.bias.data() + output,
                      count);
        }
        if (gradients.weight.absent()) continue;
        const Index inputs = std::min(kInputs, inputs_ - input);
        add_tile(x.middle_cols(input, inputs), dy.middle_cols(output, count),
                 gradients.weight.middle_rows(output, count).middle_cols(input, inputs),
                 memory_ + piece * share_);
      }
    });
  }

 private:
  /// A tile of dW += dy^T x.
  void add_tile(MatrixView<const A> x, MatrixView<const A> dy, MatrixView<A> dweight,
                A* memory) const {
    const Panels<A> sums(dy.cols, x.cols, memory);
    A* const left = memory + widest_[0] * widest_[1];
    A* const right = left + depth_ * widest_[0];
    sums.pack(dweight);
    for (Index begin = 0; begin < x.rows; begin += depth_) {
      const Index count = std::min(depth_, x.rows - begin);
      const Panels<A> outputs(count, dy.cols, left), inputs(count, x.cols, right);
      outputs.pack(dy.middle_rows(begin, count));
      inputs.pack(x.middle_rows(begin, count));
      sums.add_product(outputs, inputs);
    }
    sums.unpack(dweight);
  }

  Index inputs_, outputs_;
  Index depth_;      // rows that are packed at a time
  Index widest_[2];  // a packed tile
  Index share_;      // memory of a piece: a tile, dy, x
  A* memory_;        // [kPieces, share]
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
  dense.apply(x, y, executor);
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
  dense(x, PackedDense<A>(scratch.bytes(), parameters, call.executor), y, call.executor);
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
    detail::pack_weight(dense.weight, memory.weight, call.executor);
    detail::for_each_layer_strip(x.rows, call.executor, [&](Index begin, Index count) {
      memory.weight.multiply(detail::Start::kTarget, dy.middle_rows(begin, count),
                             dx.middle_rows(begin, count));
    });
  }
  memory.gradient.add(x, dy, gradients, call.executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
