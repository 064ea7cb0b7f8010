#pragma once

/// \file
/// Stage 5 of 5: the denominator of the read-out.
///
///     NoNormalizer    1                                  language and released video models
///     KeySum          phi(q_t) . z~_i + eps              the paper; weights of a token sum to 1
///     CrossQuery      sum_b m_ib phi(q_bw) . z_b + eps   released vision models
///
/// t is a query token in block i, w its slot in the block, and q_bw the query in slot w of block b.
/// The CrossQuery denominator mixes other tokens' queries: it does not normalise, but weights
/// trained with it need it. It requires as many query blocks as key blocks, all of one size, and is
/// not causal. A masked query keeps its slot and adds 0 to the sums.
///
/// If a denominator is exactly 0, each of the token's E outputs is 0 where its numerator is 0, and
/// infinite otherwise. Gradients treat such outputs as constants, so the token adds 0 to every
/// gradient. Examples are a query that reads no key, and a zero row of the mixing matrix.
///
/// A normaliser names the sums r_t that it reads and turns them into denominators. README.md of
/// include/mhla shows how to add a normaliser.
///
/// Source: arXiv:2601.07832, section 4.1, eq. (4); released vision layers.

#include <algorithm>
#include <concepts>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Sums of weights that a normaliser turns into denominators.
enum class WeightSums {
  kNone,        ///< none: nothing is summed, and every denominator is 1
  kToken,       ///< r_t = phi(q_t) . z~_i, the sum of the token's weights
  kCrossQuery,  ///< r_t = sum_b m_ib phi(q_bw) . z_b, over the queries in the token's slot
};

/// Requirements of a normaliser. denominators(r, count, den) writes den[t] from r[t], which
/// includes the scale of the queries; den may be r. It is not called for kNone. Laws: den[t]
/// depends on r[t] alone; nothing is allocated; concurrent calls are safe.
template <class Z>
concept Normalizer = std::copy_constructible<Z> &&
    requires(const Z& z, const float* r, const double* r64, Index count, float* y, double* y64) {
  { z.sums() } -> std::same_as<WeightSums>;
  z.denominators(r, count, y);
  z.denominators(r64, count, y64);
};

/// A normaliser with a derivative: slopes(r, count, y) writes d den / d r.
template <class Z>
concept DifferentiableNormalizer = Normalizer<Z> &&
    requires(const Z& z, const float* r, const double* r64, Index count, float* y, double* y64) {
  z.slopes(r, count, y);
  z.slopes(r64, count, y64);
};

/// A normaliser whose denominators read no later token. A choice made at run time is checked at run
/// time.
template <class Z>
concept CausalNormalizer = Normalizer<Z> && !requires {
  requires Z::sums()
  == WeightSums::kCrossQuery;
};

/// Denominators of 1.
struct NoNormalizer {
  static constexpr WeightSums sums() { return WeightSums::kNone; }
  template <class A>
  void denominators(const A* /*r*/, Index count, A* den) const {
    std::fill_n(den, count, A(1));
  }
  template <class A>
  void slopes(const A* /*r*/, Index count, A* slope) const {
    std::fill_n(slope, count, A(0));
  }
};

/// Divides by the sum of the token's weights, plus eps.
struct KeySum {
  double eps = 0;

  static constexpr WeightSums sums() { return WeightSums::kToken; }
  template <class A>
  void denominators(const A* r, Index count, A* den) const {
    for (Index t = 0; t < count; ++t) den[t] = r[t] + static_cast<A>(eps);
  }
  template <class A>
  void slopes(const A* /*r*/, Index count, A* slope) const {
    std::fill_n(slope, count, A(1));
  }
};

/// Divides by the mixture of query-key sums of other blocks in the same slot, plus eps.
struct CrossQuery {
  double eps = 1e-6;

  static constexpr WeightSums sums() { return WeightSums::kCrossQuery; }
  template <class A>
  void denominators(const A* r, Index count, A* den) const {
    for (Index t = 0; t < count; ++t) den[t] = r[t] + static_cast<A>(eps);
  }
  template <class A>
  void slopes(const A* /*r*/, Index count, A* slope) const {
    std::fill_n(slope, count, A(1));
  }
};

namespace detail {

/// The output numerator / den, or 0 for 0 / 0. A sum guards the division, because clang++ would
/// divide before a branch and raise the flag of 0 / 0.
template <class A>
A quotient(const A& numerator, const A& den) {
  const A shift = numerator == A(0) && den == A(0) ? A(-1) : A(0);
  return numerator / (den - shift);
}

/// Writes den(r_t) of `count` tokens: 1 for kNone, where r is not read.
template <class Z, class A>
void write_denominators(const Z& normalizer, const A* r, Index count, A* den) {
  if (normalizer.sums() != WeightSums::kNone) return normalizer.denominators(r, count, den);
  std::fill_n(den, count, A(1));
}
/// Writes d den / d r of `count` tokens: 0 for kNone, where r is not read.
template <class Z, class A>
void write_slopes(const Z& normalizer, const A* r, Index count, A* slopes) {
  if (normalizer.sums() != WeightSums::kNone) return normalizer.slopes(r, count, slopes);
  std::fill_n(slopes, count, A(0));
}

}  // namespace detail

static_assert(DifferentiableNormalizer<NoNormalizer> && CausalNormalizer<NoNormalizer>);
static_assert(DifferentiableNormalizer<KeySum> && CausalNormalizer<KeySum>);
static_assert(DifferentiableNormalizer<CrossQuery> && !CausalNormalizer<CrossQuery>);

}  // namespace MHLA_TARGET
}  // namespace mhla
