#pragma once

/// \file
/// Stage 1 of 5: the product of two dense layers as a feature map.
///
///     ElementwiseProduct    (W1 x + b1) * (W2 x + b2)                            D -> D
///
/// features() and the forms throw shape_error for a width other than that of the weights. Gradients
/// and tangents of the weights are one row: the first layer's weight row by row, its bias if any,
/// then the second layer's.
///
/// Cost: 4*D*D flops per token; the adjoint 12*D*D, as it computes both layers again; the tangent
/// 8*D*D for x, and 4*D*D more for weights.
/// Source: flash-linear-attention's feature maps as the authors' language layer uses them.

#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/map_layer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// (W1 x + b1) * (W2 x + b2), element by element.
template <Accumulator A>
class ElementwiseProduct : public detail::RowwiseMap<ElementwiseProduct<A>, A> {
 public:
  /// \throws shape_error unless both weights are square and of one size, and the biases fit.
  ElementwiseProduct(const DenseWeights<A>& first, const DenseWeights<A>& second)
      : first_(kName, first), second_(kName, second) {
    second_.expect_width(kName, first_.width());
  }
  ElementwiseProduct(detail::MapLayer<A> first, detail::MapLayer<A> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  Index features(Index d) const { return first_.expect_width(kName, d); }
  Index weights() const { return first_.weights() + second_.weights(); }
  void strip(MatrixView<const A> x, MatrixView<A> y) const;
  void strip_adjoint(MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dy,
                     MatrixView<A> dx, A* dweights) const;
  void strip_tangent(MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dx,
                     MatrixView<A> dy, const A* dweights) const;
  DenseWeights<A> first() const { return first_.dense(); }
  DenseWeights<A> second() const { return second_.dense(); }

 private:
  static constexpr const char* kName = "ElementwiseProduct";

  detail::MapLayer<A> first_;
  detail::MapLayer<A> second_;
};

static_assert(DifferentiableStripFeatureMap<ElementwiseProduct<float>, float> &&
              TangentStripFeatureMap<ElementwiseProduct<float>, float>);

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
void ElementwiseProduct<A>::strip(MatrixView<const A> x, MatrixView<A> y) const {
  using Eigen::internal::pmul;
  first_.expect_width(kName, x.cols);
  first_.apply(x, 0, y);
  detail::MapPiece<A> piece;
  detail::for_each_map_piece<A>(
      x.rows, x.cols, [&](Index begin, Index rows, Index first, Index cols) {
        const MatrixView<A> b = piece.view(rows, cols);
        second_.apply(x.middle_rows(begin, rows), first, b);
        for (Index r = 0; r < rows; ++r) {
          detail::update(
              y.row(begin + r) + first, cols, [](auto a, auto other) { return pmul(a, other); },
              b.row(r));
        }
      });
}

template <Accumulator A>
void ElementwiseProduct<A>::strip_adjoint(MatrixView<const A> x, MatrixView<const A> /*y*/,
                                          MatrixView<const A> dy, MatrixView<A> dx,
                                          A* dweights) const {
  using Eigen::internal::pmul;
  first_.expect_width(kName, x.cols);
  A* const dsecond = dweights == nullptr ? nullptr : dweights + first_.weights();
  detail::MapPiece<A> piece_a, piece_b;
  detail::for_each_map_piece<A>(
      x.rows, x.cols, [&](Index begin, Index rows, Index first, Index cols) {
        const MatrixView<A> a = piece_a.view(rows, cols), b = piece_b.view(rows, cols);
        const MatrixView<const A> from = x.middle_rows(begin, rows);
        const MatrixView<A> to = dx.middle_rows(begin, rows);
        first_.apply(from, first, a);
        second_.apply(from, first, b);
        for (Index r = 0; r < rows; ++r) {
          for (const MatrixView<A>& factor : {a, b}) {
            detail::update(
                factor.row(r), cols, [](auto f, auto g) { return pmul(f, g); },
                dy.row(begin + r) + first);
          }
        }
        first_.add_adjoint(from, first, b, to, dweights);
        second_.add_adjoint(from, first, a, to, dsecond);
      });
}

template <Accumulator A>
void ElementwiseProduct<A>::strip_tangent(MatrixView<const A> x, MatrixView<const A> /*y*/,
                                          MatrixView<const A> dx, MatrixView<A> dy,
                                          const A* dweights) const {
  using Eigen::internal::pmul;
  first_.expect_width(kName, x.cols);
  const A* const dsecond = dweights == nullptr ? nullptr : dweights + first_.weights();
  first_.apply_tangent(x, dx, 0, dy, dweights);
  detail::MapPiece<A> piece_a, piece_b;
  detail::for_each_map_piece<A>(
      x.rows, x.cols, [&](Index begin, Index rows, Index first, Index cols) {
        const MatrixView<A> factor = piece_a.view(rows, cols), slope = piece_b.view(rows, cols);
        const MatrixView<const A> from = x.middle_rows(begin, rows);
        const MatrixView<const A> along = dx.absent() ? dx : dx.middle_rows(begin, rows);
        second_.apply(from, first, factor);
        for (Index r = 0; r < rows; ++r) {
          detail::update(
              dy.row(begin + r) + first, cols, [](auto g, auto f) { return pmul(g, f); },
              factor.row(r));
        }
        first_.apply(from, first, factor);
        second_.apply_tangent(from, along, first, slope, dsecond);
        for (Index r = 0; r < rows; ++r) {
          detail::update(
              dy.row(begin + r) + first, cols,
              [](auto sum, auto f, auto g) { return detail::multiply_add(f, g, sum); },
              factor.row(r), slope.row(r));
        }
      });
}

}  // namespace MHLA_TARGET
}  // namespace mhla
