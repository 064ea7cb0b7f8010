#pragma once

/// \file
/// Stage 1 of 5: feature maps with weights, and maps that widen the features.
///
///     Hedgehog              softmax([2y, -2y]),  y = W x + b                     D -> 2D
///     T2R                   max(W x, 0)                                          D -> D
///     Dpfp                  u * roll(u, j) for j = 1..nu,  u = [r, -r], r = max(x, 0)
///                                                                                D -> 2 nu D
///     ElementwiseProduct    (W1 x + b1) * (W2 x + b2)                            D -> D
///
/// Dpfp follows the released code. The paper defines u = [max(x, 0), max(-x, 0)] instead.
///
/// features() and the forms throw shape_error for a width other than that of the weights.
///
/// The gradient of a map's weights is one row: the weight row by row, then the bias if any. The
/// first of two layers comes before the second.
///
/// Cost: 2*D*D flops per token and weight matrix; the adjoint 4*D*D. ElementwiseProduct takes 2*D*D
/// more in the adjoint, where it computes both layers again.
/// Source: flash-linear-attention's feature maps as the authors' language layer uses them.

#include <type_traits>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/exponential.hpp"
#include "mhla/kernel/packet.hpp"
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
  DenseWeights<A> dense() const { return layer_.dense(); }

 private:
  detail::MapLayer<A> layer_;
};

/// u * roll(u, j) for j = 1..nu, one after another; u = [max(x, 0), -max(x, 0)].
struct Dpfp {
  int nu = 4;

  constexpr Index features(Index d) const { return 2 * nu * d; }
  constexpr Index weights() const { return 0; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
  template <Accumulator A>
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d,
               std::type_identity_t<A>* dweights = nullptr) const;
};

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
  DenseWeights<A> first() const { return first_.dense(); }
  DenseWeights<A> second() const { return second_.dense(); }

 private:
  static constexpr const char* kName = "ElementwiseProduct";

  detail::MapLayer<A> first_;
  detail::MapLayer<A> second_;
};

static_assert(DifferentiableStripFeatureMap<Hedgehog<float>, float>);
static_assert(DifferentiableStripFeatureMap<T2R<float>, float>);
static_assert(DifferentiableFeatureMap<Dpfp, float> && !StripFeatureMap<Dpfp, float>);
static_assert(DifferentiableStripFeatureMap<ElementwiseProduct<float>, float>);

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

namespace detail {

/// u = [max(x, 0), -max(x, 0)] for x [D], as a circle of 2D elements.
template <Accumulator A>
struct DpfpElements {
  const A* x;
  Index d;

  Index around(Index i) const { return (i % (2 * d) + 2 * d) % (2 * d); }
  A operator[](Index i) const {
    const A value = x[i < d ? i : i - d];
    const A positive = value < 0 ? A(0) : value;
    return i < d ? positive : -positive;
  }
};

}  // namespace detail

template <Accumulator A>
void Dpfp::operator()(const A* x, A* y, Index d) const {
  const detail::DpfpElements<A> u{x, d};
  for (Index j = 1; j <= nu; ++j) {
    A* const part = y + (j - 1) * 2 * d;
    for (Index i = 0; i < 2 * d; ++i) part[i] = u[i] * u[u.around(i - j)];
  }
}

template <Accumulator A>
void Dpfp::adjoint(const A* x, const A* /*y*/, const A* dy, A* dx, Index d,
                   std::type_identity_t<A>* /*dweights*/) const {
  const detail::DpfpElements<A> u{x, d};
  // u[i] is the first factor of feature i of each part, and the second one of feature i + j.
  const auto du = [&](Index i) {
    A total = 0;
    for (Index j = 1; j <= nu; ++j) {
      const A* const part = dy + (j - 1) * 2 * d;
      const Index before = u.around(i - j), after = u.around(i + j);
      total += part[i] * u[before] + part[after] * u[after];
    }
    return total;
  };
  for (Index i = 0; i < d; ++i) {
    if (x[i] > 0) dx[i] += du(i) - du(d + i);
  }
}

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

}  // namespace MHLA_TARGET
}  // namespace mhla
