#pragma once

/// \file
/// Stage 1 of 5: the feature map phi, applied to each query and each key.
///
///     map                 feature y                         dy/dx                     D -> D
///     Relu                max(x, 0) + eps                   1 for x > 0, otherwise 0
///     EluPlusOne          x + 1 for x > 0, otherwise e^x    1 for x > 0, otherwise y
///     Identity            x                                 1
///     Exp                 e^x                               y
///     Elementwise<F, G>   f(x), a user's function           g(x), if given
///
/// Maps with weights or a wider range are in learned_feature_map.hpp. Nonnegative features keep the
/// denominators of KeySum positive; nothing else here depends on the sign.
/// Cost: N*D evaluations.
/// Source: arXiv:2601.07832, section 4.1, leaves phi open. The authors' vision and video layers use
/// Relu with eps = 1e-6.

#include <algorithm>
#include <concepts>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/exponential.hpp"
#include "mhla/kernel/packet.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// phi of one token. map(x, y, D) reads x[0..D) and writes y[0..map.features(D)); x and y do not
/// overlap. Laws: y depends on x alone, not on addresses or earlier calls; concurrent calls are
/// safe; features(D) depends on D alone. A map may also take strips of tokens, see StripFeatureMap.
template <class F, class A>
concept FeatureMap = Accumulator<A> && std::copy_constructible<F> &&
    requires(const F& map, const A* x, A* y, Index d) {
  { map.features(d) } -> std::same_as<Index>;
  map(x, y, d);
};

/// A map with a derivative. map.adjoint(x, y, dy, dx, D, dweights), with y = map(x), adds J^T dy to
/// dx[0..D). If the map has weights and `dweights` is not null, it adds their gradient to
/// dweights[0..map.weights()). No row overlaps another, and nothing is allocated.
template <class F, class A>
concept DifferentiableFeatureMap = FeatureMap<F, A> &&
    requires(const F& map, const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights) {
  { map.weights() } -> std::same_as<Index>;
  map.adjoint(x, y, dy, dx, d, dweights);
};

/// A map that also takes strips of tokens, which is faster for a dense layer. Every row of x [n,D]
/// is mapped to the same row of y [n,features(D)] by map.strip(x, y). Rows of x and y are
/// contiguous and do not overlap. Law: a row of y has the bits of map(x, y, D). Forms call `strip`
/// alone, with up to 64 rows.
template <class F, class A>
concept StripFeatureMap = FeatureMap<F, A> &&
    requires(const F& map, MatrixView<const A> x, MatrixView<A> y) {
  map.strip(x, y);
};

/// A strip map with an adjoint for strips: map.strip_adjoint(x, y, dy, dx, dweights) has the bits
/// of map.adjoint called row by row.
template <class F, class A>
concept DifferentiableStripFeatureMap = StripFeatureMap<F, A> && DifferentiableFeatureMap<F, A> &&
    requires(const F& map, MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dy,
             MatrixView<A> dx, A* dweights) {
  map.strip_adjoint(x, y, dy, dx, dweights);
};

namespace detail {
template <class F>
inline constexpr bool kElementwise = requires {
  requires F::kElementwise;
};
}  // namespace detail

/// A map with tangents. map.tangent(x, y, dx, dy, D, dweights), with y = map(x), writes J dx to
/// dy[0..features(D)), and adds the derivative along dweights[0..weights()). Either dx or dweights
/// may be null, which counts as zeros, if the map has weights; without weights dweights is null. A
/// map without weights that treats each element alone says
/// `static constexpr bool kElementwise = true` in place of `tangent`: there J is diagonal, so the
/// adjoint gives J dx.
template <class F, class A>
concept TangentFeatureMap = DifferentiableFeatureMap<F, A> &&
    (detail::kElementwise<F> ||
     requires(const F& map, const A* x, const A* y, const A* dx, A* dy, Index d,
              const A* dweights) { map.tangent(x, y, dx, dy, d, dweights); });

/// A strip map with tangents of strips: map.strip_tangent(x, y, dx, dy, dweights) has the bits of
/// map.tangent called row by row. An absent dx counts as zeros.
template <class F, class A>
concept TangentStripFeatureMap = StripFeatureMap<F, A> && TangentFeatureMap<F, A> &&
    requires(const F& map, MatrixView<const A> x, MatrixView<const A> y, MatrixView<const A> dx,
             MatrixView<A> dy, const A* dweights) {
  map.strip_tangent(x, y, dx, dy, dweights);
};

/// max(x, 0) + eps.
struct Relu {
  double eps = 1e-6;
  static constexpr bool kElementwise = true;

  constexpr Index features(Index d) const { return d; }
  constexpr Index weights() const { return 0; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
  template <Accumulator A>
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d,
               std::type_identity_t<A>* dweights = nullptr) const;
};

/// elu(x) + 1: x + 1 where x > 0, otherwise e^x.
struct EluPlusOne {
  static constexpr bool kElementwise = true;

  constexpr Index features(Index d) const { return d; }
  constexpr Index weights() const { return 0; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
  template <Accumulator A>
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d,
               std::type_identity_t<A>* dweights = nullptr) const;
};

/// The element x itself.
struct Identity {
  static constexpr bool kElementwise = true;

  constexpr Index features(Index d) const { return d; }
  constexpr Index weights() const { return 0; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
  template <Accumulator A>
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d,
               std::type_identity_t<A>* dweights = nullptr) const;
};

/// e^x, or 0 where the result would be below the smallest normal number. Above x = 88.72 (double
/// tensors: 709.78) features are infinite and outputs are NaN. Under KeySum{0}, a number that is
/// subtracted from all elements of all keys of a head, such as the largest, cancels out.
struct Exp {
  static constexpr bool kElementwise = true;

  constexpr Index features(Index d) const { return d; }
  constexpr Index weights() const { return 0; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
  template <Accumulator A>
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d,
               std::type_identity_t<A>* dweights = nullptr) const;
};

/// Tag of an Elementwise without a derivative.
struct NoDerivative {};

/// A function of one number, applied to each element: Elementwise([](auto x) { return x * x; }).
/// With its derivative the map has an adjoint: Elementwise(f, [](auto x) { return 2 * x; }).
template <class F, class G = NoDerivative>
struct Elementwise {
  static constexpr bool kElementwise = true;

  F function;
  G derivative;

  explicit constexpr Elementwise(F f, G g = {}) : function(f), derivative(g) {}
  constexpr Index features(Index d) const { return d; }
  constexpr Index weights() const { return 0; }
  template <Accumulator A>
  requires std::convertible_to<std::invoke_result_t<const F&, A>, A>
  void operator()(const A* x, A* y, Index d) const {
    for (Index j = 0; j < d; ++j) y[j] = static_cast<A>(function(x[j]));
  }
  template <Accumulator A>
  requires std::convertible_to<std::invoke_result_t<const G&, A>, A>
  void adjoint(const A* x, const A* /*y*/, const A* dy, A* dx, Index d,
               std::type_identity_t<A>* /*dweights*/ = nullptr) const {
    for (Index j = 0; j < d; ++j) dx[j] += dy[j] * static_cast<A>(derivative(x[j]));
  }
};

static_assert(TangentFeatureMap<Relu, float> && TangentFeatureMap<Relu, double>);
static_assert(TangentFeatureMap<EluPlusOne, float> && TangentFeatureMap<EluPlusOne, double>);
static_assert(TangentFeatureMap<Identity, float> && TangentFeatureMap<Identity, double>);
static_assert(TangentFeatureMap<Exp, float> && TangentFeatureMap<Exp, double>);

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
MHLA_INLINE inline void Relu::operator()(const A* x, A* y, Index d) const {
  using namespace Eigen::internal;
  const A shift = static_cast<A>(eps);
  detail::transform(x, y, d, [shift](auto p) {
    using P = decltype(p);
    // Like std::max, pmax returns its first argument where neither is less, so NaN stays NaN.
    return padd(pmax(p, pset1<P>(A(0))), pset1<P>(shift));
  });
}

template <Accumulator A>
void Relu::adjoint(const A* x, const A* /*y*/, const A* dy, A* dx, Index d,
                   std::type_identity_t<A>* /*dweights*/) const {
  using namespace Eigen::internal;
  detail::update(
      dx, d,
      [](auto sum, auto p, auto g) {
        using P = decltype(p);
        const P zero = pset1<P>(A(0));
        return padd(sum, pselect(pcmp_lt(zero, p), g, zero));
      },
      x, dy);
}

template <Accumulator A>
void EluPlusOne::operator()(const A* x, A* y, Index d) const {
  using namespace Eigen::internal;
  detail::transform(x, y, d, [](auto p) {
    using P = decltype(p);
    return pselect(pcmp_lt(pset1<P>(A(0)), p), padd(p, pset1<P>(A(1))), detail::exponential(p));
  });
}

template <Accumulator A>
void EluPlusOne::adjoint(const A* x, const A* y, const A* dy, A* dx, Index d,
                         std::type_identity_t<A>* /*dweights*/) const {
  using namespace Eigen::internal;
  detail::update(
      dx, d,
      [](auto sum, auto p, auto feature, auto g) {
        using P = decltype(p);
        const P slope = pselect(pcmp_lt(pset1<P>(A(0)), p), pset1<P>(A(1)), feature);
        return detail::multiply_add(g, slope, sum);
      },
      x, y, dy);
}

template <Accumulator A>
MHLA_INLINE inline void Identity::operator()(const A* x, A* y, Index d) const {
  detail::transform(x, y, d, [](auto p) { return p; });
}

template <Accumulator A>
void Identity::adjoint(const A* /*x*/, const A* /*y*/, const A* dy, A* dx, Index d,
                       std::type_identity_t<A>* /*dweights*/) const {
  detail::add_to(dy, dx, d);
}

template <Accumulator A>
void Exp::operator()(const A* x, A* y, Index d) const {
  detail::transform(x, y, d, [](auto p) { return detail::exponential(p); });
}

template <Accumulator A>
void Exp::adjoint(const A* /*x*/, const A* y, const A* dy, A* dx, Index d,
                  std::type_identity_t<A>* /*dweights*/) const {
  detail::update(
      dx, d, [](auto sum, auto feature, auto g) { return detail::multiply_add(g, feature, sum); },
      y, dy);
}

namespace detail {

/// Writes the tangent of the features of one token.
template <class A, TangentFeatureMap<A> Map>
void write_tangent(const Map& map, const A* x, const A* y, const A* dx, A* dy, Index d,
                   const A* dweights) {
  if constexpr (kElementwise<Map>) {
    std::fill_n(dy, d, A(0));
    map.adjoint(x, y, dx, dy, d, nullptr);
  } else {
    map.tangent(x, y, dx, dy, d, dweights);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
