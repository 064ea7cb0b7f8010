#pragma once

/// \file
/// A depthwise convolution over a grid of tokens, and its adjoint: the locally enhanced positional
/// encoding of image and video layers.
///
///     y[t,c] = bias[c] + sum over taps k of weight[c,k] * x[t + k - (kernel - 1) / 2, c]
///     dx[t,c]      += sum over taps k of weight[c,k] * dy[t - k + (kernel - 1) / 2, c]
///     dweight[c,k] += sum over tokens t of dy[t,c] * x[t + k - (kernel - 1) / 2, c]
///     dbias[c]     += sum over tokens t of dy[t,c]
///
///     x, y [B*T,C]: B items of T = frames * rows * columns tokens, weight [C,taps], bias [C]
///
/// Tokens t and taps k are triples (frame, row, column). Tokens outside the grid are 0. The weight
/// has the memory layout of PyTorch's [C,1,rows,columns] or [C,1,frames,rows,columns]. Rows of all
/// views are contiguous (column stride 1) at any row stride. Outputs overlap nothing else. Cost:
/// 2*B*T*C*taps flops, the adjoint twice that.

#include <algorithm>
#include <span>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/convolution_taps.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The tokens of an item, and the taps of each token.
struct DepthwiseGrid {
  GridShape tokens;  ///< along each axis, all >= 1
  GridShape kernel;  ///< taps along each axis, all odd
  /// The row of each token inside its item, tokens in raster order: a permutation of 0 .. T-1.
  /// Repeated rows are not detected. Empty if rows are in raster order.
  std::span<const Index> places{};
};

/// Writes the convolution of each item of x into y.
/// \param x, y        [B*T,C]
/// \param parameters  weight [C,taps] with columns in raster order of the kernel, bias [C] or empty
/// \param call        its executor splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void depthwise_convolution(const X& x,
                           const ConvolutionView<const detail::element_t<X>>& parameters,
                           const DepthwiseGrid& grid, const detail::output_t<X>& y,
                           const Call& call = {});

/// Bytes of workspace of depthwise_convolution: about (taps + 1) * C numbers.
template <Accumulator A>
std::size_t depthwise_convolution_workspace_bytes(Index channels, GridShape kernel);

/// Adds the gradients of x and of the parameters for the gradient dy of y.
/// \param x, dy      [B*T,C]
/// \param dx         [B*T,C] or absent
/// \param gradients  of the parameters; absent ones are skipped
/// \param call       its executor splits over rows; the gradients of the parameters over chunks of
///                   rows, whose sums are added in order
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void depthwise_convolution_adjoint(const X& x,
                                   const ConvolutionView<const detail::element_t<X>>& parameters,
                                   const DepthwiseGrid& grid, const detail::input_t<X>& dy,
                                   const detail::output_t<X>& dx,
                                   const ConvolutionView<detail::element_t<X>>& gradients,
                                   const Call& call = {});

/// Bytes of workspace of depthwise_convolution_adjoint: up to about 65 (taps + 1) * C numbers.
template <Accumulator A>
std::size_t depthwise_convolution_adjoint_workspace_bytes(Index rows, Index channels,
                                                          GridShape kernel);

// ------------------------------------------------------------------------------------------------

namespace detail {

inline Index volume(const GridShape& g) { return g[0] * g[1] * g[2]; }

/// The taps of the rows of x, at positions in raster order of all items.
template <Accumulator A>
class GridTaps {
  /// The taps of a token along one axis that are inside the grid: t reads begin + t.
  struct Axis {
    Index first, last, begin;

    Axis(Index token, Index tokens, Index taps)
        : first(std::max<Index>(0, taps / 2 - token)),
          last(std::min(taps, tokens - token + taps / 2)),
          begin(token - taps / 2) {}
  };

  /// A token of an item.
  class Position {
   public:
    Index alike;

    Position(const GridTaps& taps, Index position)
        : taps_(taps), item_(position / taps.size_), token_(position - item_ * taps.size_) {
      const Index line = token_ / tokens()[2];
      row_ = line % tokens()[1], frame_ = line / tokens()[1];
      column_ = token_ - line * tokens()[2];
      const Index side = kernel()[2] / 2;
      alike = column_ < side ? 1 : std::max<Index>(1, tokens()[2] - side - column_);
    }
    Index row(Index i) const { return taps_.row(item_, token_ + i); }
    const A* from(Index source) const { return taps_.x_.row(taps_.row(item_, source)); }
    template <class F>
    void for_each(const F& f) const {
      const Axis frames(frame_, tokens()[0], kernel()[0]), rows(row_, tokens()[1], kernel()[1]),
          columns(column_, tokens()[2], kernel()[2]);
      for (Index k = frames.first; k < frames.last; ++k) {
        for (Index j = rows.first; j < rows.last; ++j) {
          const Index line = (frames.begin + k) * tokens()[1] + rows.begin + j;
          const Index taps = (k * kernel()[1] + j) * kernel()[2];
          for (Index i = columns.first; i < columns.last; ++i) {
            f(taps_.weight_of(taps + i), line * tokens()[2] + columns.begin + i);
          }
        }
      }
    }

   private:
    const GridShape& tokens() const { return taps_.grid_.tokens; }
    const GridShape& kernel() const { return taps_.grid_.kernel; }

    const GridTaps& taps_;
    Index item_, token_;
    Index frame_, row_, column_;
  };

 public:
  /// \param mirrored  true for the weights of a kernel that is reversed along each axis
  GridTaps(MatrixView<const A> x, const DepthwiseGrid& grid, bool mirrored)
      : x_(x), grid_(grid), size_(volume(grid.tokens)), mirrored_(mirrored) {}

  Position at(Index position) const { return Position(*this, position); }

 private:
  Index row(Index item, Index token) const {
    if (!grid_.places.empty()) token = grid_.places[static_cast<std::size_t>(token)];
    return item * size_ + token;
  }
  Index weight_of(Index tap) const { return mirrored_ ? volume(grid_.kernel) - 1 - tap : tap; }

  MatrixView<const A> x_;
  DepthwiseGrid grid_;
  Index size_;
  bool mirrored_;
};

inline void expect_kernel(const char* function, const GridShape& kernel) {
  expect_grid(function, "kernel", kernel);
  for (const Index size : kernel.sizes) {
    if (size % 2 == 0) fail_option(function, "kernel", "is " + grid_text(kernel), "odd sizes");
  }
}

/// Throws unless `places` is empty or has one row of the grid per token.
inline void expect_places(const char* function, std::span<const Index> places, Index tokens) {
  expect_elements_or_none(function, "places", places.size(), tokens);
  for (const Index place : places) {
    if (place < 0 || place >= tokens) {
      fail_option(function, "places", "has a row " + std::to_string(place),
                  "rows in [0, " + std::to_string(tokens) + ")");
    }
  }
}

template <Accumulator A>
void expect_depthwise(const char* function, const MatrixView<const A>& x,
                      const ConvolutionView<const A>& parameters, const DepthwiseGrid& grid) {
  expect_rows(function, "x", x, -1, -1);
  expect_grid(function, "tokens", grid.tokens);
  expect_kernel(function, grid.kernel);
  const Index tokens = volume(grid.tokens);
  expect_whole_items(function, "x", x.rows, tokens, "the tokens of the grid");
  expect_places(function, grid.places, tokens);
  expect_convolution(function, parameters, x.cols, volume(grid.kernel));
}

template <Accumulator A>
struct DepthwiseAdjointMemory {
  TapWeights<A> weights;
  ConvolutionGradient<A> gradient;

  DepthwiseAdjointMemory(const char* function, Arena& arena, Index rows, Index channels, Index taps)
      : weights(function, arena, channels, taps), gradient(function, arena, rows, channels, taps) {}
};

}  // namespace detail

template <Accumulator A>
std::size_t depthwise_convolution_workspace_bytes(Index channels, GridShape kernel) {
  constexpr const char* kName = "depthwise_convolution";
  detail::expect_kernel(kName, kernel);
  return detail::counted_bytes([&](detail::Arena& arena) {
    return detail::TapWeights<A>(kName, arena, channels, detail::volume(kernel));
  });
}

template <LayerInput X>
void depthwise_convolution(const X& input,
                           const ConvolutionView<const detail::element_t<X>>& parameters,
                           const DepthwiseGrid& grid, const detail::output_t<X>& y,
                           const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "depthwise_convolution";
  const detail::input_t<X> x(input);
  detail::expect_depthwise(kName, x, parameters, grid);
  detail::expect_rows(kName, "y", y, x.rows, x.cols);
  detail::Scratch scratch(kName, call.workspace,
                          depthwise_convolution_workspace_bytes<A>(x.cols, grid.kernel));
  const detail::TapWeights<A> weights(kName, scratch.arena(), x.cols, detail::volume(grid.kernel));
  weights.fill(parameters);
  detail::convolve(detail::GridTaps<A>(x, grid, false), weights, weights.bias(), y, call.executor);
}

template <Accumulator A>
std::size_t depthwise_convolution_adjoint_workspace_bytes(Index rows, Index channels,
                                                          GridShape kernel) {
  constexpr const char* kName = "depthwise_convolution_adjoint";
  detail::expect_kernel(kName, kernel);
  return detail::counted_bytes([&](detail::Arena& arena) {
    return detail::DepthwiseAdjointMemory<A>(kName, arena, rows, channels, detail::volume(kernel));
  });
}

template <LayerInput X>
void depthwise_convolution_adjoint(const X& input,
                                   const ConvolutionView<const detail::element_t<X>>& parameters,
                                   const DepthwiseGrid& grid, const detail::input_t<X>& dy,
                                   const detail::output_t<X>& dx,
                                   const ConvolutionView<detail::element_t<X>>& gradients,
                                   const Call& call) {
  using A = detail::element_t<X>;
  constexpr const char* kName = "depthwise_convolution_adjoint";
  const detail::input_t<X> x(input);
  detail::expect_depthwise(kName, x, parameters, grid);
  const Index size = detail::volume(grid.kernel);
  detail::expect_rows(kName, "dy", dy, x.rows, x.cols);
  detail::expect_rows_or_none(kName, "dx", dx, x.rows, x.cols);
  detail::expect_convolution_gradients(kName, gradients, x.cols, size);
  detail::Scratch scratch(
      kName, call.workspace,
      depthwise_convolution_adjoint_workspace_bytes<A>(x.rows, x.cols, grid.kernel));
  const detail::DepthwiseAdjointMemory<A> memory(kName, scratch.arena(), x.rows, x.cols, size);
  if (!dx.absent()) {
    memory.weights.fill(parameters);
    const detail::GridTaps<A> mirrored(dy, grid, true);
    detail::convolve(mirrored, memory.weights, nullptr, dx, call.executor);
  }
  memory.gradient.add(detail::GridTaps<A>(x, grid, false), dy, gradients, call.executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
