#pragma once

/// \file
/// Stage 1 of 5: the feature map phi, applied to each query and each key.
///
///     Relu                max(x, 0) + eps                      D -> D   vision, video, language
///     EluPlusOne          x + 1 for x > 0, otherwise e^x       D -> D
///     Identity            x                                    D -> D   features made elsewhere
///     Exp                 e^x                                  D -> D
///     Elementwise<F>      f(x) for a function of your own      D -> D
///
/// Maps with weights or a wider range are in learned_feature_map.hpp. Nonnegative features keep the
/// denominators of KeySum positive; nothing else here depends on the sign.
/// Cost: N*D evaluations. Source: arXiv:2601.07832, section 4.1 leaves phi open; Relu with
/// eps = 1e-6 is what the authors' vision and video layers use.

#include <concepts>

#include "mhla/core/arch.hpp"
#include "mhla/core/packet.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla::inline MHLA_TARGET {

/// phi of one token. map(x, y, D) reads x[0..D) and writes y[0..map.features(D)); x and y do not
/// overlap. Laws: y depends on x alone, not on addresses or earlier calls; calls from several
/// threads at once are fine; features(D) depends on D alone.
template <class F, class A>
concept FeatureMap = Accumulator<A> && std::copy_constructible<F> &&
    requires(const F& map, const A* x, A* y, Index d) {
  { map.features(d) } -> std::same_as<Index>;
  map(x, y, d);
};

/// max(x, 0) + eps.
struct Relu {
  double eps = 1e-6;

  constexpr Index features(Index d) const { return d; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
};

/// elu(x) + 1: x + 1 where x > 0, e^x elsewhere.
struct EluPlusOne {
  constexpr Index features(Index d) const { return d; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
};

/// x itself.
struct Identity {
  constexpr Index features(Index d) const { return d; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
};

/// e^x; 0 where the result would be below the smallest normal number.
struct Exp {
  constexpr Index features(Index d) const { return d; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
};

/// A function of one number, applied to each element: Elementwise([](auto x) { return x * x; }).
template <class F>
struct Elementwise {
  F function;

  explicit constexpr Elementwise(F f) : function(f) {}
  constexpr Index features(Index d) const { return d; }
  template <Accumulator A>
  requires std::convertible_to<std::invoke_result_t<const F&, A>, A>
  void operator()(const A* x, A* y, Index d) const {
    for (Index j = 0; j < d; ++j) y[j] = static_cast<A>(function(x[j]));
  }
};

static_assert(FeatureMap<Relu, float> && FeatureMap<Relu, double>);
static_assert(FeatureMap<EluPlusOne, float> && FeatureMap<EluPlusOne, double>);
static_assert(FeatureMap<Identity, float> && FeatureMap<Identity, double>);
static_assert(FeatureMap<Exp, float> && FeatureMap<Exp, double>);

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
void Relu::operator()(const A* x, A* y, Index d) const {
  using namespace Eigen::internal;
  const A shift = static_cast<A>(eps);
  detail::transform(x, y, d, [shift](auto p) {
    using P = decltype(p);
    // As std::max: the first where neither is less, so NaN stays NaN.
    return padd(pmax(p, pset1<P>(A(0))), pset1<P>(shift));
  });
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
void Identity::operator()(const A* x, A* y, Index d) const {
  for (Index j = 0; j < d; ++j) y[j] = x[j];
}

template <Accumulator A>
void Exp::operator()(const A* x, A* y, Index d) const {
  detail::transform(x, y, d, [](auto p) { return detail::exponential(p); });
}

}  // namespace mhla::inline MHLA_TARGET
