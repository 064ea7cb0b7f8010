#pragma once

/// \file
/// Bounds of the distance of a form from naive_attention of the same arguments, evaluated in a
/// wider type.
///
/// Features are those of the form: naive_attention maps them in the accumulator. The bound is
/// derived per component. Let m be the longest chain of roundings of any term, and u the unit
/// roundoff of the accumulator. A is the numerator and Z the sum of the denominator's terms, with
/// every term replaced by its magnitude, and Z increased by |eps|:
///
///     |num^ - num| <= gamma_m A
///     |den^ - den| <= gamma_m Z
///     |o^ - o|     <= (|num^ - num| + |o| |den^ - den|) / (|den| - |den^ - den|) + 2u (|o| + ...)
///
/// The last term is the reciprocal and its product. Storage adds half a unit of the output. If all
/// weights are 0, and eps, the output is exactly 0, unless F, see below, overflows.
///
/// A result below the normal numbers has an absolute error eta instead. It is half the smallest
/// number, or the smallest normal number if the environment flushes to zero. Later factors multiply
/// it. Over all that an output may read, their product is at most
///
///     F = (1 + |q|_1) (1 + |m|_1) (1 + |k|_1) (1 + |v|_1)
///
/// So the numerator has at most m eta F more, and the denominator the same with v = 1. If F
/// overflows, there is no bound. Rounding modes other than to nearest double u.

#include <gtest/gtest.h>

#include <cfenv>
#include <concepts>
#include <iostream>
#include <limits>

#include "support/outputs.hpp"
#include "support/problem.hpp"

namespace mhla::test {

/// Type of references.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, long double, double>;

/// Unit roundoff of the type in which sums of T are kept.
template <class T>
constexpr double kUnitRoundoff =
    static_cast<double>(std::numeric_limits<accumulator_t<T>>::epsilon()) / 2;

/// Unit roundoff of T as storage; 0 if T is the accumulator.
template <class T>
constexpr double kStorageRoundoff = 0;
template <>
inline constexpr double kStorageRoundoff<Eigen::half> = 0x1p-11;
template <>
inline constexpr double kStorageRoundoff<Eigen::bfloat16> = 0x1p-8;

/// 1 if the caller rounds to nearest, and 2 otherwise.
inline double rounding_factor() { return std::fegetround() == FE_TONEAREST ? 1 : 2; }

/// u in the floating-point environment of the caller.
template <class T>
Wide<T> roundoff() {
  return kUnitRoundoff<T> * rounding_factor();
}
/// eta in the floating-point environment of the caller, rounded up.
template <class T>
Wide<T> underflow() {
  using A = accumulator_t<T>;
  constexpr A kNormal = (std::numeric_limits<A>::min)();
  volatile A half = kNormal;
  half = half / 2;
  const bool flushes = !(half > 0);
  return static_cast<Wide<T>>(flushes ? kNormal : std::numeric_limits<A>::denorm_min());
}
/// Error of storing a number of this size as T.
template <class T>
Wide<T> storage_error(Wide<T> size) {
  if constexpr (kStorageRoundoff<T> == 0) return 0;
  return rounding_factor() * (kStorageRoundoff<T> * size + 0x1p-25);
}

/// Required outputs of a form.
template <class T>
struct Expected {
  Matrix<Wide<T>> out;    // [Nq,E]
  Matrix<Wide<T>> bound;  // [Nq,E]; negative where the denominator is lost in its
                          // error or the output out of the range of T
};

/// Roundings to fp32 that the matrix unit may add to a numerator of bfloat16 tensors
/// (stage/amx/unit.hpp). They are the splits s_1 + s_2 + s_3 + 2^-20 in units of 2^-24, one per
/// step of the three products, and 18 more in the last.
template <class T>
Index tile_roundings(const Problem<T>& p) {
  if constexpr (!kMatrixUnit || !std::same_as<T, Eigen::bfloat16>) return 0;
  constexpr Index kSplits = (128 + 512 + 512) * 129 / 128 + 1 + 16;
  const auto steps = [](Index depth) { return 18 + 3 * (depth / 32 + 2); };
  return kSplits + steps(p.k.rows()) + steps(p.key_blocks.blocks()) +
         steps(p.query_map.features(p.q.cols()));
}

/// The largest of some sizes, and 1.
template <class V>
auto one_more(const V& sizes) {
  return typename V::Scalar(1) + (sizes.size() == 0 ? typename V::Scalar(0) : sizes.maxCoeff());
}

/// Required output of a problem, and the bound for a form with chains of m roundings.
template <class T>
Expected<T> expected(const Problem<T>& p, Index m) {
  using W = Wide<T>;
  const W u = roundoff<T>(), g = gamma(m + 1, u);  // + 1: the scale of the queries
  const W num_g = gamma(m + 1 + tile_roundings(p), u);
  const auto exact = naive_problem<W>(p.inputs(), p.blocks(), p.mixing(), p.op(), p.order());
  const Matrix<W> out = naive_attention(exact), dens = naive_denominators(exact);
  auto sizes = exact;
  for (Matrix<W>* x :
       {&sizes.q, &sizes.k, &sizes.v, &sizes.mixing, &sizes.normalizer_q, &sizes.normalizer_k}) {
    *x = x->cwiseAbs();
  }
  const Matrix<W> a = naive_weights(sizes) * sizes.v, z = naive_sums(sizes);
  const bool own = p.has_separate_normalizer();
  const W factor = one_more(sizes.mixing.rowwise().sum()) * one_more(sizes.q.rowwise().sum()) *
                   (1 + sizes.k.sum());
  const W den_factor = own ? one_more(sizes.mixing.rowwise().sum()) *
                                 one_more(sizes.normalizer_q.rowwise().sum()) *
                                 (1 + sizes.normalizer_k.sum())
                           : factor;
  const W eta = W(m + 1) * underflow<T>(), most = W((std::numeric_limits<accumulator_t<T>>::max)());
  Expected<T> result{out, out};
  for (Index t = 0; t < out.rows(); ++t) {
    const W den = std::abs(dens(t, 0));
    const W tiny_den = eta * den_factor * W(1 + p.k.rows());
    const W den_error = g * (z(t, 0) + W(p.eps)) + tiny_den;
    for (Index j = 0; j < out.cols(); ++j) {
      const W o = std::abs(out(t, j));
      const W largest = factor * (1 + sizes.v.col(j).sum());
      W error = (num_g * a(t, j) + eta * largest + o * den_error) / (den - den_error);
      error += 2 * u * (o + error) * (1 + u) + eta;
      error += storage_error<T>(o + error);
      const bool fits = largest < most && den_factor < most;
      const bool lost =
          !(den > den_error) || !fits || !(o + error <= W((std::numeric_limits<T>::max)()));
      const bool nothing = den == 0 && z(t, 0) == 0 && p.eps == 0 && a(t, j) == 0;
      const bool exact_zero = (nothing && fits) || !p.inputs().query_mask[t];
      result.bound(t, j) = exact_zero ? W(0) : lost ? W(-1) : error;
    }
  }
  return result;
}

/// Required output for a form (support/forward_forms.hpp), or the form's expectation.
template <class F, class T>
Expected<T> expected_of(const Problem<T>& p) {
  if constexpr (requires { F::expect(p); }) {
    return F::expect(p);
  } else {
    return expected(p, F::chain(p));
  }
}

/// Results of a run of random problems.
struct Tally {
  double worst = 0;  // largest error over bound
  Index outputs = 0;
  Index ill = 0;  // outputs without a bound
};

/// Adds one problem's outputs to the tally; a failure names the problem.
template <class T>
void compare(const Problem<T>& p, const Expected<T>& e, const Matrix<T>& out, const char* form,
             Tally& tally) {
  using W = Wide<T>;
  ASSERT_EQ(out.rows(), e.out.rows());
  ASSERT_EQ(out.cols(), e.out.cols());
  for (Index t = 0; t < out.rows(); ++t) {
    for (Index j = 0; j < out.cols(); ++j) {
      ++tally.outputs;
      if (e.bound(t, j) < 0) {
        ++tally.ill;
        continue;
      }
      const W got = static_cast<W>(static_cast<accumulator_t<T>>(out(t, j)));
      const W error = std::abs(got - e.out(t, j));
      if (error == 0) continue;
      const double ratio = static_cast<double>(error / e.bound(t, j));
      tally.worst = std::max(tally.worst, ratio);
      ASSERT_LE(ratio, 1) << form << " (" << t << "," << j << ") is " << got << ", expected "
                          << e.out(t, j) << " within " << e.bound(t, j) << "\n"
                          << p.text();
    }
  }
}

}  // namespace mhla::test
