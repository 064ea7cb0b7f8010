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
/// weights are 0, and eps, the output is exactly 0.

#include <gtest/gtest.h>

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

/// Required output of a problem, and the bound for a form with chains of m roundings.
template <class T>
Expected<T> expected(const Problem<T>& p, Index m) {
  using W = Wide<T>;
  const W u = kUnitRoundoff<T>, g = gamma(m + 1, u);  // + 1: the scale of the queries
  const W num_g = gamma(m + 1 + tile_roundings(p), u), storage = W(kStorageRoundoff<T>);
  const auto exact = naive_problem<W>(p.inputs(), p.blocks(), p.mixing(), p.op(), p.order());
  const Matrix<W> out = naive_attention(exact), dens = naive_denominators(exact);
  auto sizes = exact;
  for (Matrix<W>* x :
       {&sizes.q, &sizes.k, &sizes.v, &sizes.mixing, &sizes.normalizer_q, &sizes.normalizer_k}) {
    *x = x->cwiseAbs();
  }
  const Matrix<W> a = naive_weights(sizes) * sizes.v, z = naive_sums(sizes);
  Expected<T> result{out, out};
  for (Index t = 0; t < out.rows(); ++t) {
    const W den = std::abs(dens(t, 0));
    const W den_error = g * (z(t, 0) + W(p.eps));
    for (Index j = 0; j < out.cols(); ++j) {
      const W o = std::abs(out(t, j));
      W error = (num_g * a(t, j) + o * den_error) / (den - den_error);
      error += 2 * u * (o + error) * (1 + u);
      error += storage * (o + error) + (storage > 0 ? W(0x1p-25) : W(0));
      const bool lost = !(den > den_error) || o + error > W(std::numeric_limits<T>::max());
      const bool nothing = den == 0 && den_error == 0 && a(t, j) == 0;
      const bool exact_zero = nothing || !p.inputs().query_mask[t];
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
