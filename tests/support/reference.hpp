#pragma once

/// \file
/// What the outputs of a random problem must be, and how far a form may be from it.
///
/// The reference is the naive form in a wider type. The bound is componentwise and derived: with m
/// the longest chain of roundings on the way of any term, u the unit roundoff of the accumulator,
/// num = sum_j w_j v_j and den the exact numerator and denominator,
///
///     |num^ - num| <= gamma_m A + dA,   A = sum_j |w_j| |v_j|
///     |den^ - den| <= gamma_m Z + dZ,   Z = sum_j |w_j| + |eps|
///     |o^ - o|     <= (|num^ - num| + |o| |den^ - den|) / (|den| - |den^ - den|) + 2u (|o| + ...)
///
/// dA and dZ carry the error of the features themselves: A and Z of |phi| + error minus those of
/// |phi|. The last term is the reciprocal and its product. Storage adds half a unit of the output.

#include <gtest/gtest.h>

#include <concepts>
#include <iostream>
#include <limits>

#include "support/outputs.hpp"
#include "support/problem.hpp"

namespace mhla::test {

/// The type references are computed in.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, long double, double>;

/// Unit roundoff of what sums of T are kept in.
template <class T>
constexpr double kUnitRoundoff =
    static_cast<double>(std::numeric_limits<accumulator_t<T>>::epsilon()) / 2;

/// Unit roundoff of T as storage, 0 where it is the accumulator.
template <class T>
constexpr double kStorageRoundoff = 0;
template <>
inline constexpr double kStorageRoundoff<Eigen::half> = 0x1p-11;
template <>
inline constexpr double kStorageRoundoff<Eigen::bfloat16> = 0x1p-8;

/// What a form must give.
template <class T>
struct Expected {
  Matrix<Wide<T>> out;    // [Nq,E]
  Matrix<Wide<T>> bound;  // [Nq,E]; negative where the denominator is lost in its own
                          // error or the output out of the range of T
};

namespace reference_detail {

template <class W, class T, class A>
void map_rows(const Matrix<T>& x, const AnyMap<A>& map, double scale, W u, Matrix<W>& value,
              Matrix<W>& error) {
  const W factor = static_cast<W>(static_cast<A>(scale));
  const W rounding = scale == 1 ? W(0) : u;
  value.resize(x.rows(), map.features(x.cols()));
  error.resize(value.rows(), value.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    std::vector<W> row;
    for (Index j = 0; j < x.cols(); ++j) {
      row.push_back(static_cast<W>(static_cast<A>(x(t, j))));
    }
    const auto f = reference_features(map, row, u);
    for (Index j = 0; j < value.cols(); ++j) {
      const auto i = static_cast<std::size_t>(j);
      value(t, j) = factor * f.value[i];
      error(t, j) =
          std::abs(factor) * f.error[i] * (1 + rounding) + rounding * std::abs(value(t, j));
    }
  }
}

inline std::vector<bool> mask_vector(const Matrix<bool>& m) {
  return std::vector<bool>(m.data(), m.data() + m.size());
}

template <class W>
Matrix<W> magnitudes(const Matrix<W>& m) {
  return m.cwiseAbs();
}

}  // namespace reference_detail

/// Calls f(reference, absolute lower, absolute upper) with the naive problems of the values, of the
/// magnitudes, and of the magnitudes plus the error of the features.
template <class T, class F>
void with_naive(const Problem<T>& p, F&& f) {
  using W = Wide<T>;
  using namespace reference_detail;
  const W u = kUnitRoundoff<T>;
  NaiveProblem<W> exact;
  Matrix<W> dq, dk, dnq, dnk;
  map_rows<W>(p.q, p.query_map, p.scale, u, exact.q, dq);
  map_rows<W>(p.k, p.key_map, 1, u, exact.k, dk);
  if (p.has_own_normalizer()) {
    map_rows<W>(p.normalizer_q, p.query_map, p.scale, u, exact.normalizer_q, dnq);
    map_rows<W>(p.normalizer_k, p.key_map, 1, u, exact.normalizer_k, dnk);
  }
  exact.v = p.v.template cast<accumulator_t<T>>().template cast<W>();
  exact.mixing = p.coefficients.template cast<W>();
  for (Index i = 0; i < exact.mixing.rows(); ++i) {
    for (Index b = 0; b < exact.mixing.cols(); ++b) {
      if (b < i - p.lower || b > i + p.upper) exact.mixing(i, b) = 0;
    }
  }
  exact.query_block = p.query_blocks.block_of_token();
  exact.key_block = p.key_blocks.block_of_token();
  exact.query_slot = p.query_blocks.slot_of_token();
  exact.normalizer = p.normalizer;
  exact.eps = static_cast<W>(static_cast<accumulator_t<T>>(p.eps));
  exact.query_kept = mask_vector(p.query_mask);
  exact.key_kept = mask_vector(p.key_mask);
  exact.causal = p.causal;

  NaiveProblem<W> lower = exact;
  lower.q = magnitudes(exact.q);
  lower.k = magnitudes(exact.k);
  lower.v = magnitudes(exact.v);
  lower.mixing = magnitudes(exact.mixing);
  lower.eps = std::abs(exact.eps);
  lower.normalizer_q = magnitudes(exact.normalizer_q);
  lower.normalizer_k = magnitudes(exact.normalizer_k);
  NaiveProblem<W> upper = lower;
  upper.q += dq;
  upper.k += dk;
  if (p.has_own_normalizer()) {
    upper.normalizer_q += dnq;
    upper.normalizer_k += dnk;
  }
  f(exact, lower, upper);
}

/// Roundings to fp32 that the matrix unit may add to a numerator of bfloat16 tensors
/// (attention/tiled_head.hpp): the splits s_1 + s_2 + s_3 + 2^-20 in units of 2^-24, and one for
/// each step of the three products, 18 more in the last.
template <class T>
Index tile_roundings(const Problem<T>& p) {
  if constexpr (!kMatrixUnit || !std::same_as<T, Eigen::bfloat16>) return 0;
  constexpr Index kSplits = (128 + 512 + 512) * 129 / 128 + 1 + 16;
  const auto steps = [](Index depth) { return 18 + 3 * (depth / 32 + 2); };
  return kSplits + steps(p.k.rows()) + steps(p.key_blocks.blocks()) +
         steps(p.query_map.features(p.q.cols()));
}

/// The output a problem must have, and how far a form with chains of m roundings may be from it.
template <class T>
Expected<T> expected(const Problem<T>& p, Index m) {
  using W = Wide<T>;
  const W u = kUnitRoundoff<T>, g = gamma(m, u), num_g = gamma(m + tile_roundings(p), u);
  Expected<T> result;
  with_naive(p, [&](NaiveProblem<W>& exact, NaiveProblem<W>& lower, NaiveProblem<W>& upper) {
    const Matrix<W> den = naive_denominators(exact);
    const Matrix<W> z_lower = naive_denominators(lower), z_upper = naive_denominators(upper);
    const bool divides = p.normalizer != NaiveNormalizer::kNone;
    exact.normalizer = lower.normalizer = upper.normalizer = NaiveNormalizer::kNone;
    const Matrix<W> num = naive_attention(exact);
    const Matrix<W> a_lower = naive_attention(lower), a_upper = naive_attention(upper);
    result.out = num;
    result.bound.resize(num.rows(), num.cols());
    for (Index t = 0; t < num.rows(); ++t) {
      const bool masked = p.query_mask.size() > 0 && !p.query_mask(0, t);
      const W den_error = divides ? g * z_upper(t, 0) + (z_upper(t, 0) - z_lower(t, 0)) : W(0);
      for (Index j = 0; j < num.cols(); ++j) {
        const W num_error = num_g * a_upper(t, j) + (a_upper(t, j) - a_lower(t, j));
        W o = num(t, j), error = num_error;
        if (divides) {
          o = num(t, j) / den(t, 0);
          error = (num_error + std::abs(o) * den_error) / (std::abs(den(t, 0)) - den_error);
          error += 2 * u * (std::abs(o) + error) * (1 + u);
        }
        const W storage = static_cast<W>(kStorageRoundoff<T>);
        error += storage * (std::abs(o) + error) + (storage > 0 ? W(0x1p-25) : W(0));
        result.out(t, j) = masked ? W(0) : o;
        const bool lost = !(std::abs(den(t, 0)) > den_error) ||
                          std::abs(o) + error > static_cast<W>(std::numeric_limits<T>::max());
        result.bound(t, j) = masked ? W(0) : lost ? W(-1) : error;
      }
    }
  });
  return result;
}

/// How a run of random problems came out.
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

/// Checks `problems` random problems of a form against the naive one.
/// \param run    the form: Problem<T> -> Matrix<T>
/// \param chain  its longest chain of roundings: Problem<T> -> Index
template <class T, class Run, class Chain>
void expect_equal_to_naive(const char* form, bool causal, std::uint64_t first_seed, Index problems,
                           Run&& run, Chain&& chain) {
  Tally tally;
  for (Index i = 0; i < problems && !testing::Test::HasFatalFailure(); ++i) {
    const auto p = random_problem<T>(first_seed + static_cast<std::uint64_t>(i), causal);
    compare(p, expected(p, chain(p)), run(p), form, tally);
  }
  std::cout << form << ": worst error " << tally.worst << " of the bound in " << tally.outputs
            << " outputs, " << tally.ill << " more without a bound\n";
  EXPECT_LT(tally.ill, tally.outputs / 20);  // a test of nothing would pass too
}

}  // namespace mhla::test
