#pragma once

/// \file
/// Two checks of a problem's gradients g against the definition.
///
/// Oracle: for a random direction x' of all variables, J x' by dual numbers through the naive form,
///
///     <J x', dout> = <x', g>
///
/// Both sides are the same sum over the ways from an input to an output, added up in another order,
/// so they differ by at most gamma_m s with s the size of <J x', dout> in Terms: for one direction,
/// all elements of g at once, through no derivative written by hand.
///
/// Elements: |g^ - g| <= gamma_m s with g and s of dense_gradient in Terms, and the rounding of
/// storage, once.

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <string>

#include "support/gradient_oracle.hpp"
#include "support/gradient_reference.hpp"
#include "support/gradient_run.hpp"

namespace mhla::test {

/// How a run of random problems came out.
struct GradientTally {
  double worst = 0;  // largest error over what it may be
  std::string worst_tensor = "none";
  Index problems = 0, skipped = 0;  // skipped: see make_comparable
  Index queries = 0, masked = 0;    // masked because their denominators were lost
  Index elements = 0, ill = 0;      // ill: out of the range of T

  void raise(double ratio, const char* tensor) {
    if (!(ratio > worst)) return;
    worst = ratio;
    worst_tensor = tensor;
  }
};

/// Makes a problem comparable and counts it; false if it is to be skipped.
template <class T>
bool count_problem(Problem<T>& p, GradientTally& tally) {
  ++tally.problems;
  tally.queries += p.q.rows();
  if (make_comparable(p, tally.masked)) return true;
  ++tally.skipped;
  return false;
}

/// Prints a tally; a test of nothing would pass too, so it fails if much was left out.
inline void finish(const char* form, const char* what, const GradientTally& tally) {
  std::cout << form << ": worst error " << tally.worst << " of " << what << " ("
            << tally.worst_tensor << ") in " << tally.problems << " problems; skipped "
            << tally.skipped << ", masked " << tally.masked << " of " << tally.queries
            << " queries, out of range " << tally.ill << " of " << tally.elements << " elements\n";
  EXPECT_LT(tally.skipped, tally.problems / 20);
  EXPECT_LT(tally.masked, tally.queries / 20);
  EXPECT_LE(tally.ill, tally.elements / 20);
}

/// The oracle on random problems: <J x', dout> = <x', g> within 1e-12 of its size, at most
/// 9007 roundings.
template <class Form>
void expect_oracle(std::uint64_t first_seed, Index problems) {
  GradientTally tally;
  for (Index i = 0; i < problems && !testing::Test::HasFatalFailure(); ++i) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(i);
    auto p = Form::template problem<double>(seed);
    if (!count_problem(p, tally)) continue;
    Random rng(seed + 1);
    auto direction = random_direction(p, rng);
    if (!Form::kMixes) direction.mixing.setZero();
    const Matrix<double> dout = random_dout(p);
    const auto expected = directional_derivative(p, direction, dout);
    const auto g = gradients_of<Form>(p, dout).values();
    const long double got = inner_product(direction, g);
    const long double error = std::abs(got - expected.value);
    if (error == 0) continue;
    const auto ratio = static_cast<double>(error / expected.size / 1e-12L);
    tally.raise(ratio, "all");
    ASSERT_LE(ratio, 1) << Form::kName << ": <v, J^T w> is " << got << ", <J v, w> "
                        << expected.value << ", size " << expected.size << "\n"
                        << p.text();
  }
  finish(Form::kName, "1e-12", tally);
}

/// Compares every element of a problem's gradients with the definition.
/// \param start  what was in the buffers before; null: zeros
template <class Form, class T>
void compare_elements(const Problem<T>& p, const GradientBuffers<T>& buffers, const Matrix<T>& dout,
                      GradientTally& tally, const Variables<double>* start = nullptr) {
  using S = TermsOf<T>;
  using W = Wide<T>;
  using A = accumulator_t<T>;
  const auto terms = [](double a) { return S(a); };
  const auto x = map_variables<S>(values_of(p), terms);
  const auto wide =
      map_elements<S>(dout, [](const T& a) { return S(static_cast<double>(static_cast<A>(a))); });
  auto expected = dense_gradient(p, x, wide);
  const W u = static_cast<W>(kUnitRoundoff<T>), storage = static_cast<W>(kStorageRoundoff<T>);
  const auto compare = [&](const char* name, const auto& got, const auto& want, W g, W stored) {
    ASSERT_EQ(static_cast<Index>(got.size()), static_cast<Index>(want.size())) << name;
    for (Index i = 0; i < static_cast<Index>(want.size()); ++i) {
      const S& e = want.data()[i];
      ++tally.elements;
      // Second-order terms: denominators are at least 64 times their error.
      W bound = g * e.size * (1 + W(1) / 16);
      bound += stored * (std::abs(e.value) + bound) + (stored > 0 ? W(0x1p-25) : W(0));
      if (std::abs(e.value) + bound > static_cast<W>(std::numeric_limits<T>::max())) {
        ++tally.ill;
        continue;
      }
      const W error = std::abs(static_cast<W>(got.data()[i]) - e.value);
      if (error == 0) continue;
      const auto ratio = static_cast<double>(error / bound);
      tally.raise(ratio, name);
      ASSERT_LE(ratio, 1) << Form::kName << ": d" << name << "[" << i << "] is " << got.data()[i]
                          << ", expected " << e.value << " within " << bound << "\n"
                          << p.text();
    }
  };
  const auto got = buffers.values();
  const auto banded = [&p](Matrix<S> m) {
    for (Index i = 0; i < m.rows(); ++i) {
      for (Index b = 0; b < m.cols(); ++b) {
        if (!in_band(p, i, b)) m(i, b) = S(0);
      }
    }
    return m;
  };
  expected.mixing = banded(expected.mixing);
  if (start != nullptr) {
    for_each_tensor(
        [](const char*, auto& to, const auto& before) {
          for (Index i = 0; i < static_cast<Index>(to.size()); ++i) {
            to.data()[i] += S(before.data()[i]);
          }
        },
        expected, *start);
  }
  const W g = gamma(gradient_chain(p), u), parameter_g = gamma(parameter_chain(p), u);
  compare("q", got.q, expected.q, g, storage);
  compare("k", got.k, expected.k, g, storage);
  compare("v", got.v, expected.v, g, storage);
  compare("normalizer_q", got.normalizer_q, expected.normalizer_q, g, storage);
  compare("normalizer_k", got.normalizer_k, expected.normalizer_k, g, storage);
  if (Form::kMixes) compare("mixing", got.mixing, expected.mixing, parameter_g, W(0));
  compare("query_weights", got.query_weights, expected.query_weights, parameter_g, W(0));
  compare("key_weights", got.key_weights, expected.key_weights, parameter_g, W(0));
}

/// Every element of the gradients of random problems.
template <class Form, class T>
void expect_elements(std::uint64_t first_seed, Index problems) {
  GradientTally tally;
  for (Index i = 0; i < problems && !testing::Test::HasFatalFailure(); ++i) {
    auto p = Form::template problem<T>(first_seed + static_cast<std::uint64_t>(i));
    if (!count_problem(p, tally)) continue;
    const Matrix<T> dout = random_dout(p);
    compare_elements<Form>(p, gradients_of<Form>(p, dout), dout, tally);
  }
  finish(Form::kName, "the bound", tally);
}

/// The same for large problems.
template <class Form, class T>
void expect_elements_of_large_problems(std::uint64_t first_seed, Index problems) {
  GradientTally tally;
  for (Index i = 0; i < problems && !testing::Test::HasFatalFailure(); ++i) {
    auto p = large_problem<T>(first_seed + static_cast<std::uint64_t>(i), Form::kCausal);
    Form::fit(p);
    if (!count_problem(p, tally)) continue;
    const Matrix<T> dout = random_dout(p);
    compare_elements<Form>(p, gradients_of<Form>(p, dout), dout, tally);
  }
  finish(Form::kName, "the bound, large problems", tally);
}

}  // namespace mhla::test
