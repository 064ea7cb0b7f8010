#pragma once

/// \file
/// Stage 1 of 5: feature maps with weights.
///
///     Hedgehog              softmax([2y, -2y]),  y = W x + b                     D -> 2D
///     T2R                   max(W x, 0)                                          D -> D
///     Dpfp                  u * roll(u, j) for j = 1..nu,  u = [r, -r], r = max(x, 0)
///                                                                                D -> 2 nu D
///
/// features() and the forms throw shape_error for a width other than that of the weights.
///
/// The gradient of a map's weights is one row: the weight row by row, then the bias if any. A
/// tangent of the weights has the same order.
///
/// Cost: 2*D*D flops per token; the adjoint 4*D*D, the tangent 2*D*D for x and as many for weights.
/// Source: flash-linear-attention's feature maps as the authors' language layer uses them.

#include <type_traits>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/exponential.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/policy/dpfp.hpp"
#include "mhla/policy/elementwise_product.hpp"
#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/map_layer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// softmax([2y, -2y]) over all 2D features, y = W x + b.
template <Accumulator A>
class Hedgehog : public detail::RowwiseMap<Hedgehog<A>, A> {
 public:
  /// \throws shape_error unless the weight is square and the bias fits it.
  explicit Hedgehog(const DenseWeights<A>& dense) : layer_("Hedgehog", dense) {}
  explicit Hedgehog(detail::MapLayer<A> layer) : layer_(std::move(layer)) {}

  Index features(Index d) const { return 2 * layer_.expect_width("Hedgehog", d); }
  Index weights() const { return layer_.weights(); }
  void strip(MatrixView<const A> x, MatrixView<A> y) const;
  void strip_adjoint(MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dy,
                     MatrixView<A> dx, A* dweights) const;
  void strip_tangent(MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dx,
                     MatrixView<A> dy, const A* dweights) const;
  DenseWeights<A> dense() const { return layer_.dense(); }

 private:
  detail::MapLayer<A> layer_;
};

/// max(W x, 0).
template <Accumulator A>
class T2R : public detail::RowwiseMap<T2R<A>, A> {
 public:
  /// \throws shape_error unless the weight is square.
  explicit T2R(const Matrix<A>& weight) : layer_("T2R", {weight, {}}) {}
  explicit T2R(detail::MapLayer<A> layer) : layer_(std::move(layer)) {}

  Index features(Index d) const { return layer_.expect_width("T2R", d); }
  Index weights() const { return layer_.weights(); }
  void strip(MatrixView<const A> x, MatrixView<A> y) const;
  void strip_adjoint(MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dy,
                     MatrixView<A> dx, A* dweights) const;
  void strip_tangent(MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dx,
                     MatrixView<A> dy, const A* dweights) const;
  DenseWeights<A> dense() const { return layer_.dense(); }

 private:
  detail::MapLayer<A> layer_;
};

static_assert(DifferentiableStripFeatureMap<Hedgehog<float>, float> &&
              TangentStripFeatureMap<Hedgehog<float>, float>);
static_assert(DifferentiableStripFeatureMap<T2R<float>, float> &&
              TangentStripFeatureMap<T2R<float>, float>);

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
void Hedgehog<A>::strip(MatrixView<const A> x, MatrixView<A> y) const {
  using namespace Eigen::internal;
  const Index d = x.cols;
  layer_.expect_width("Hedgehog", d);
  layer_.apply(x, 0, {y.data, y.rows, d, y.row_stride});
  for (Index r = 0; r < y.rows; ++r) {
    A* const row = y.row(r);
    using P = detail::Packet<A>;
    P bound = pset1<P>(A(0));
    detail::for_each_packet(row, d, A(0), [&bound](P p) { bound = pmax(bound, pabs(p)); });
    const A largest = 2 * predux_max(bound);
    const auto power = [largest](P p) {
      return detail::exponential_below_zero(psub(padd(p, p), pset1<P>(largest)));
    };
    detail::transform(row, row + d, d, [&power](P p) { return power(pnegate(p)); });
    detail::transform(row, row, d, power);
    const A total = detail::sum(row, 2 * d);
    detail::transform(row, row, 2 * d,
                      [total](auto p) { return pdiv(p, pset1<decltype(p)>(total)); });
  }
}

template <Accumulator A>
void Hedgehog<A>::strip_adjoint(MatrixView<const A> x, MatrixView<const A> y,
                                MatrixView<const A> dy, MatrixView<A> dx, A* dweights) const {
  using namespace Eigen::internal;
  const Index d = x.cols;
  layer_.expect_width("Hedgehog", d);
  detail::MapPiece<A> piece;
  detail::for_each_map_piece<A>(x.rows, d, [&](Index begin, Index rows, Index first, Index cols) {
    const MatrixView<A> slopes = piece.view(rows, cols);
    for (Index r = 0; r < rows; ++r) {
      const A* const features = y.row(begin + r);
      const A* const gradient = dy.row(begin + r);
      const A mean = detail::dot(features, gradient, 2 * d);  // mean of dy under the softmax
      detail::combine(
          slopes.row(r), cols,
          [mean](auto up, auto dup, auto down, auto ddown) {
            const auto m = pset1<decltype(up)>(mean);
            const auto difference =
                detail::multiply_add(up, psub(dup, m), pmul(pnegate(down), psub(ddown, m)));
            return padd(difference, difference);
          },
          features + first, gradient + first, features + d + first, gradient + d + first);
    }
    layer_.add_adjoint(x.middle_rows(begin, rows), first, slopes, dx.middle_rows(begin, rows),
                       dweights);
  });
}

/// The tangent of y = softmax(z) is y (dz - y . dz); here dz = [2 dy, -2 dy] of the layer.
template <Accumulator A>
void Hedgehog<A>::strip_tangent(MatrixView<const A> x, MatrixView<const A> y,
                                MatrixView<const A> dx, MatrixView<A> dy, const A* dweights) const {
  using namespace Eigen::internal;
  const Index d = x.cols;
  layer_.expect_width("Hedgehog", d);
  layer_.apply_tangent(x, dx, 0, {dy.data, dy.rows, d, dy.row_stride}, dweights);
  for (Index r = 0; r < dy.rows; ++r) {
    const A *const up = y.row(r), *const down = up + d;
    A* const row = dy.row(r);
    const A mean = 2 * (detail::dot<A>(up, row, d) - detail::dot<A>(down, row, d));
    const auto finish = [mean](auto feature, auto twice) {
      return pmul(feature, psub(twice, pset1<decltype(twice)>(mean)));
    };
    detail::combine(
        row + d, d, [&](auto f, auto g) { return finish(f, pnegate(padd(g, g))); }, down, row);
    detail::update(
        row, d, [&](auto g, auto f) { return finish(f, padd(g, g)); }, up);
  }
}

template <Accumulator A>
void T2R<A>::strip(MatrixView<const A> x, MatrixView<A> y) const {
  using namespace Eigen::internal;
  layer_.expect_width("T2R", x.cols);
  layer_.apply(x, 0, y);
  for (Index r = 0; r < y.rows; ++r) {
    detail::transform(y.row(r), y.row(r), y.cols, [](auto p) {
      const auto zero = pset1<decltype(p)>(A(0));
      return pselect(pcmp_lt(p, zero), zero, p);
    });
  }
}

template <Accumulator A>
void T2R<A>::strip_adjoint(MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dy,
                           MatrixView<A> dx, A* dweights) const {
  using namespace Eigen::internal;
  layer_.expect_width("T2R", x.cols);
  detail::MapPiece<A> piece;
  detail::for_each_map_piece<A>(x.rows, x.cols,
                                [&](Index begin, Index rows, Index first, Index cols) {
                                  const MatrixView<A> slopes = piece.view(rows, cols);
                                  for (Index r = 0; r < rows; ++r) {
                                    detail::combine(
                                        slopes.row(r), cols,
                                        [](auto feature, auto g) {
                                          const auto zero = pset1<decltype(g)>(A(0));
                                          return pselect(pcmp_lt(zero, feature), g, zero);
                                        },
                                        y.row(begin + r) + first, dy.row(begin + r) + first);
                                  }
                                  layer_.add_adjoint(x.middle_rows(begin, rows), first, slopes,
                                                     dx.middle_rows(begin, rows), dweights);
                                });
}

template <Accumulator A>
void T2R<A>::strip_tangent(MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dx,
                           MatrixView<A> dy, const A* dweights) const {
  using namespace Eigen::internal;
  layer_.expect_width("T2R", x.cols);
  layer_.apply_tangent(x, dx, 0, dy, dweights);
  for (Index r = 0; r < dy.rows; ++r) {
    detail::update(
        dy.row(r), dy.cols,
        [](auto g, auto feature) {
          const auto zero = pset1<decltype(g)>(A(0));
          return pselect(pcmp_lt(zero, feature), g, zero);
        },
        y.row(r));
  }
}

}  // namespace MHLA_TARGET
}  // namespace mhla
