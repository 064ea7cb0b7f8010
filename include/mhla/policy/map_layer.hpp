#pragma once

/// \file
/// The dense layer of a learned feature map, for strips of tokens on the register-tiled product.
///
/// Every output, and every element of a gradient, is one chain of multiply-adds (product.hpp): its
/// bits depend neither on the strip of a token nor on how work is cut into pieces.

#include <algorithm>
#include <string>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A dense layer y = W x + b on rows of D numbers; an empty bias counts as 0.
template <Accumulator A>
struct DenseWeights {
  Matrix<A> weight;  ///< [outputs, D]
  Matrix<A> bias;    ///< [1, outputs], [outputs, 1] or empty

  Index weights() const { return weight.size() + bias.size(); }
};

namespace detail {

/// A square dense layer of a feature map, with a packed copy of its weight for the product.
template <Accumulator A>
class MapLayer {
 public:
  /// \throws shape_error unless the weight is square and the bias fits it.
  MapLayer(const char* map, DenseWeights<A> dense);

  const DenseWeights<A>& dense() const { return dense_; }
  Index weights() const { return dense_.weights(); }
  /// \throws shape_error unless rows have width d.
  void expect_width(const char* map, Index d) const;
  /// y = x W^T + b for outputs [first, first + y.cols).          // x [n,D], y [n,y.cols]
  void apply(MatrixView<const A> x, Index first, MatrixView<A> y) const;
  /// Adds the part of the outputs [first, first + dy.cols), of gradient dy, to dx [n,D] and, unless
  /// null, to dweights.
  void add_adjoint(MatrixView<const A> x, Index first, MatrixView<const A> dy, MatrixView<A> dx,
                   A* dweights) const;

 private:
  DenseWeights<A> dense_;
  Matrix<A> transposed_;  // [D, outputs]
};

/// One-token calls of a feature map, as strips of one row.
template <class Map, Accumulator A>
class CallsOfOneToken {
 public:
  void operator()(const A* x, A* y, Index d) const {
    map().strip({x, 1, d, d}, {y, 1, map().features(d), 0});
  }
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights = nullptr) const {
    const Index features = map().features(d);
    map().strip_adjoint({x, 1, d, d}, {y, 1, features, 0}, {dy, 1, features, 0}, {dx, 1, d, d},
                        dweights);
  }

 private:
  const Map& map() const { return static_cast<const Map&>(*this); }
};

}  // namespace detail

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator A>
MapLayer<A>::MapLayer(const char* map, DenseWeights<A> dense)
    : dense_(std::move(dense)), transposed_(dense_.weight.transpose()) {
  const Index d = dense_.weight.rows();
  if (dense_.weight.cols() != d) {
    fail_shape(map, "weight", "has shape " + shape_text({d, dense_.weight.cols()}),
               "a square matrix [D, D]");
  }
  if (dense_.bias.size() != 0 && dense_.bias.size() != d) {
    fail_shape(map, "bias", "has " + std::to_string(dense_.bias.size()) + " elements",
               std::to_string(d) + " or none");
  }
}

template <Accumulator A>
void MapLayer<A>::expect_width(const char* map, Index d) const {
  if (dense_.weight.cols() != d) {
    fail_shape(map, "x", "has width " + std::to_string(d),
               std::to_string(dense_.weight.cols()) + " (the width of the weight)");
  }
}

template <Accumulator A>
void MapLayer<A>::apply(MatrixView<const A> x, Index first, MatrixView<A> y) const {
  const Index stride = transposed_.cols();
  const A* const bias = dense_.bias.size() > 0 ? dense_.bias.data() + first : nullptr;
  multiply<A>({.out = {y.data, y.row_stride},
               .a = x,
               .b = {transposed_.data() + first, stride},
               .cols = y.cols,
               .start = start_from(bias, y)});
}

template <Accumulator A>
void MapLayer<A>::add_adjoint(MatrixView<const A> x, Index first, MatrixView<const A> dy,
                              MatrixView<A> dx, A* dweights) const {
  const Index d = x.cols;
  multiply<A>({.out = {dx.data, dx.row_stride},
               .a = dy,
               .b = {dense_.weight.data() + first * d, d},
               .cols = d,
               .start = Start::kTarget});
  if (dweights == nullptr) return;
  multiply<A>({.out = {dweights + first * d, d},
               .a = dy.transposed(),
               .b = {x.data, x.row_stride},
               .cols = d,
               .start = Start::kTarget});
  if (dense_.bias.size() == 0) return;
  add_rows_to(dy.data, dy.row_stride, dy.rows, dweights + dense_.weight.size() + first, dy.cols);
}

/// Stack memory for some tokens' outputs of a layer, or their gradients.
template <Accumulator A>
struct MapPiece {
  static constexpr Index kRows = 32, kCols = 64;
  alignas(kBufferAlignment) A numbers[kRows * kCols];

  MatrixView<A> view(Index rows, Index cols) { return {numbers, rows, cols, kCols}; }
};

/// Calls f(first row, rows, first column, columns) for pieces [rows, cols], whose columns ascend.
template <Accumulator A, class F>
void for_each_map_piece(Index rows, Index cols, F&& f) {
  using Piece = MapPiece<A>;
  for (Index r = 0; r < rows; r += Piece::kRows) {
    for (Index c = 0; c < cols; c += Piece::kCols) {
      f(r, std::min(Piece::kRows, rows - r), c, std::min(Piece::kCols, cols - c));
    }
  }
}

}  // namespace detail

}  // namespace MHLA_TARGET
}  // namespace mhla
