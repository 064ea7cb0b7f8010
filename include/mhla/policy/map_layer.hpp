#pragma once

/// \file
/// The dense layer of a learned feature map, for strips of tokens on the register-tiled product.
///
/// Every output and every element of a gradient is one chain of multiply-adds (product.hpp). Its
/// bits depend neither on the strip of a token nor on the split of work into pieces.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/inner_products.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/transpose.hpp"

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

/// A square dense layer of a feature map, with its weight transposed for the product.
template <Accumulator A>
class MapLayer {
 public:
  /// Copies the weights. Copies of the layer share this memory.
  /// \throws shape_error unless the weight is square and the bias fits it.
  MapLayer(const char* map, const DenseWeights<A>& dense);
  /// Refers to weights in memory that must outlive the layer.
  /// \param weight  [D,D], row by row
  /// \param bias    [D] or null
  /// \param scratch    D*D numbers of memory, for the transposed weight
  MapLayer(Index width, const A* weight, const A* bias, A* scratch);

  DenseWeights<A> dense() const;
  Index width() const { return width_; }  ///< D
  Index weights() const { return width_ * width_ + (bias_ == nullptr ? 0 : width_); }
  /// Returns d.
  /// \throws shape_error unless rows have width d.
  Index expect_width(const char* map, Index d) const;
  /// y = x W^T + b for outputs [first, first + y.cols).          // x [n,D], y [n,y.cols]
  void apply(MatrixView<const A> x, Index first, MatrixView<A> y) const;
  /// dy = dx W^T + x dW^T + db for outputs [first, first + dy.cols). An absent dx, or null dweights
  /// [weights()], counts as zeros.
  void apply_tangent(MatrixView<const A> x, MatrixView<const A> dx, Index first, MatrixView<A> dy,
                     const A* dweights) const;
  /// Adds the gradient through outputs [first, first + dy.cols) to dx [n,D] and, unless null, to
  /// dweights. dy is the gradient of these outputs.
  void add_adjoint(MatrixView<const A> x, Index first, MatrixView<const A> dy, MatrixView<A> dx,
                   A* dweights) const;

 private:
  Index width_;
  const A *weight_, *bias_;
  const A* transposed_;                           // [D, outputs]
  std::shared_ptr<const std::vector<A>> memory_;  // owns all three if copied
};

/// Base of a feature map (CRTP) that maps one token as a strip of one row.
template <class Map, Accumulator A>
class RowwiseMap {
 public:
  void operator()(const A* x, A* y, Index d) const {
    map().strip({x, 1, d, d}, {y, 1, map().features(d), 0});
  }
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights = nullptr) const {
    const Index features = map().features(d);
    map().strip_adjoint({x, 1, d, d}, {y, 1, features, 0}, {dy, 1, features, 0}, {dx, 1, d, d},
                        dweights);
  }
  void tangent(const A* x, const A* y, const A* dx, A* dy, Index d,
               const A* dweights = nullptr) const {
    const Index features = map().features(d);
    map().strip_tangent({x, 1, d, d}, {y, 1, features, 0},
                        dx == nullptr ? MatrixView<const A>() : MatrixView<const A>(dx, 1, d, d),
                        {dy, 1, features, 0}, dweights);
  }

 private:
  const Map& map() const { return static_cast<const Map&>(*this); }
};

}  // namespace detail

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator A>
MapLayer<A>::MapLayer(Index width, const A* weight, const A* bias, A* scratch)
    : width_(width), weight_(weight), bias_(bias), transposed_(scratch) {
  transpose(MatrixView<const A>(weight, width, width, width), scratch, width);
}

template <Accumulator A>
MapLayer<A>::MapLayer(const char* map, const DenseWeights<A>& dense) {
  const Index d = dense.weight.rows(), biases = dense.bias.size();
  if (dense.weight.cols() != d) {
    fail_shape(map, "weight", "has shape " + shape_text({d, dense.weight.cols()}),
               "a square matrix [D, D]");
  }
  if (biases != 0 && biases != d) {
    fail_shape(map, "bias", "has " + std::to_string(biases) + " elements",
               std::to_string(d) + " or none");
  }
  const auto memory =
      std::make_shared<std::vector<A>>(static_cast<std::size_t>(2 * d * d + biases));
  A* const weight = memory->data();
  A* const bias = std::copy_n(dense.weight.data(), d * d, weight);
  A* const scratch = std::copy_n(dense.bias.data(), biases, bias);
  *this = MapLayer(d, weight, biases == 0 ? nullptr : bias, scratch);
  memory_ = memory;
}

template <Accumulator A>
DenseWeights<A> MapLayer<A>::dense() const {
  DenseWeights<A> copy{Eigen::Map<const Matrix<A>>(weight_, width_, width_), {}};
  if (bias_ != nullptr) copy.bias = Eigen::Map<const Matrix<A>>(bias_, 1, width_);
  return copy;
}

template <Accumulator A>
Index MapLayer<A>::expect_width(const char* map, Index d) const {
  if (width_ != d) {
    fail_shape(map, "x", "has width " + std::to_string(d),
               std::to_string(width_) + " (the width of the weight)");
  }
  return d;
}

template <Accumulator A>
void MapLayer<A>::apply(MatrixView<const A> x, Index first, MatrixView<A> y) const {
  const A* const bias = bias_ == nullptr ? nullptr : bias_ + first;
  multiply<A>({.out = {y.data, y.row_stride},
               .a = x,
               .b = {transposed_ + first, width_},
               .cols = y.cols,
               .start = start_from(bias, y)});
}

template <Accumulator A>
void MapLayer<A>::apply_tangent(MatrixView<const A> x, MatrixView<const A> dx, Index first,
                                MatrixView<A> dy, const A* dweights) const {
  const bool biased = bias_ != nullptr && dweights != nullptr;
  const A* const dbias = biased ? dweights + width_ * width_ + first : nullptr;
  const Start start = start_from(dbias, dy);
  if (!dx.absent()) {
    multiply<A>({.out = {dy.data, dy.row_stride},
                 .a = dx,
                 .b = {transposed_ + first, width_},
                 .cols = dy.cols,
                 .start = start});
  } else if (start == Start::kZero) {
    for (Index r = 0; r < dy.rows; ++r) std::fill_n(dy.row(r), dy.cols, A(0));
  }
  if (dweights == nullptr) return;
  add_inner_products<A>({x.data, x.row_stride}, x.rows, {dweights + first * width_, width_},
                        dy.cols, width_, {dy.data, dy.row_stride});
}

template <Accumulator A>
void MapLayer<A>::add_adjoint(MatrixView<const A> x, Index first, MatrixView<const A> dy,
                              MatrixView<A> dx, A* dweights) const {
  const Index d = x.cols;
  multiply<A>({.out = {dx.data, dx.row_stride},
               .a = dy,
               .b = {weight_ + first * d, d},
               .cols = d,
               .start = Start::kTarget});
  if (dweights == nullptr) return;
  multiply<A>({.out = {dweights + first * d, d},
               .a = dy.transposed(),
               .b = {x.data, x.row_stride},
               .cols = d,
               .start = Start::kTarget});
  if (bias_ == nullptr) return;
  add_rows_to(dy.data, dy.row_stride, dy.rows, dweights + width_ * width_ + first, dy.cols);
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
