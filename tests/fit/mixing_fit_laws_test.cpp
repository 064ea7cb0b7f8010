// Checks that a fit minimises its objective, by the definition in plain loops.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "mhla/fit/mixing_fit.hpp"
#include "support/problem.hpp"
#include "support/seeds.hpp"

namespace mhla::test {
namespace {

using Fit = MixingFit<double>;

/// The operator of a problem; some have a normaliser whose slope is not 1.
template <class T>
auto op_of(const Problem<T>& p) {
  const bool square = p.normalizer == WeightSums::kToken && p.seed % 3 == 0;
  return Operator{p.query_map, p.key_map,
                  square ? AnyNormalizer(SquarePlusOne{}) : AnyNormalizer(p.normalizer, p.eps),
                  p.scale};
}

/// Adds a problem, with blocks of cross-attention unless it is causal.
template <class T, class Target>
void add(MixingFit<accumulator_t<T>>& fit, const Problem<T>& p, const Target& target) {
  if (p.causal) {
    fit.add(p.inputs(), p.query_blocks, op_of(p), target);
  } else {
    fit.add(p.inputs(), p.blocks(), op_of(p), target);
  }
}

/// Residual and sums of a fit for a matrix m, by the definition.
struct Definition {
  // Per query block; `denominators` are their sums, divided by the start's.
  std::vector<double> squares, sizes, targets, denominators;
  Index left_out = 0;

  template <class T>
  Definition(const Problem<T>& p, const MixingMatrix<accumulator_t<T>>& m, const Matrix<T>& target)
      : squares(static_cast<std::size_t>(m.rows())),
        sizes(squares),
        targets(squares),
        denominators(squares) {
    const auto at_start =
        naive_problem<double>(p.inputs(), p.blocks(), p.mixing(), op_of(p), p.order());
    auto at_m = at_start;
    at_m.mixing = m.dense().template cast<double>();
    auto large = at_m;
    for (auto* x :
         {&large.q, &large.k, &large.v, &large.normalizer_q, &large.normalizer_k, &large.mixing}) {
      *x = x->cwiseAbs();
    }
    const Matrix<double> den = naive_denominators(at_start), r0 = naive_sums(at_start);
    Matrix<double> slope = r0;
    at_start.normalizer.slopes(r0.data(), r0.rows(), slope.data());
    const Matrix<double> r = naive_sums(at_m), numerator = naive_weights(at_m) * at_m.v;
    const Matrix<double> large_r = naive_sums(large), large_num = naive_weights(large) * large.v;
    for (Index t = 0; t < target.rows(); ++t) {
      if (!naive_detail::kept(at_start.query_kept, t)) continue;
      const std::size_t i = static_cast<std::size_t>(naive_detail::at(at_start.query_block, t));
      if (!std::isnormal(den(t, 0))) {
        ++left_out;
        continue;
      }
      denominators[i] += slope(t, 0) * r(t, 0) / den(t, 0);
      for (Index j = 0; j < target.cols(); ++j) {
        const double y = static_cast<double>(static_cast<accumulator_t<T>>(target(t, j)));
        const double linear = den(t, 0) + slope(t, 0) * (r(t, 0) - r0(t, 0));
        const double residual = (numerator(t, j) - linear * y) / den(t, 0);
        const double size =
            (large_num(t, j) +
             std::abs(y) * (std::abs(den(t, 0)) + std::abs(slope(t, 0)) * (std::abs(large_r(t, 0)) +
                                                                           std::abs(r0(t, 0))))) /
            den(t, 0);
        squares[i] += residual * residual;
        sizes[i] += size * size;
        targets[i] += y * y;
      }
    }
  }

  /// True if the denominators of some block's queries do not sum to more than 0.
  bool nothing_divides() const { return std::ranges::min(denominators) <= 0; }
};

template <class T>
void expect_the_definition(bool causal) {
  int checked = 0;
  for (const std::uint64_t seed : seeds(400)) {
    const Problem<T> p = random_problem<T>(seed, causal);
    Random rng(seed + 1000);
    const Matrix<T> target = rng.matrix<T>(p.q.rows(), p.v.cols());
    MixingFit<accumulator_t<T>> fit(p.mixing(), p.order());
    add(fit, p, target);
    Problem<T> other = p;
    for (auto& c : other.coefficients.reshaped()) {
      c = p.sparse && c == 0 ? c : static_cast<accumulator_t<T>>(rng.uniform());
    }
    for (const MixingMatrix<accumulator_t<T>>& m : {p.mixing(), other.mixing()}) {
      const FitResidual residual = fit.residual(m);
      const Definition exact(p, m, target);
      ASSERT_EQ(residual.left_out, exact.left_out) << p.text();
      for (std::size_t i = 0; i < residual.of_block.size(); ++i) {
        const double squares = residual.of_block[i] * residual.of_block[i] * exact.targets[i];
        ASSERT_NEAR(squares, exact.squares[i], 1e-12 * exact.sizes[i]) << i << ", " << p.text();
        checked += exact.targets[i] > 0;
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

TEST(MixingFit, ResidualIsThatOfTheDefinition) {
  expect_the_definition<double>(false);
  expect_the_definition<float>(false);
  expect_the_definition<Eigen::bfloat16>(false);
}
TEST(MixingFit, ResidualIsThatOfTheDefinitionCausal) {
  expect_the_definition<double>(true);
  expect_the_definition<Eigen::half>(true);
}

TEST(MixingFit, RoundingOfResidualsGrowsWithTheCoefficients) {
  for (const std::uint64_t seed : seeds(200)) {
    Problem<double> p = random_problem<double>(seed, seed % 2 == 0);
    Random rng(seed + 1000);
    Matrix<double> target = rng.matrix<double>(p.q.rows(), p.v.cols());
    Problem<double> large = p;
    large.coefficients *= 1e5;
    if (p.normalizer == WeightSums::kNone) {  // a residual of 0 between large terms
      const auto at_large =
          naive_problem<double>(p.inputs(), p.blocks(), large.mixing(), op_of(p), p.order());
      target = naive_weights(at_large) * at_large.v;
    }
    Fit fit(p.mixing(), p.order());
    add(fit, p, target);
    const FitResidual residual = fit.residual(large.mixing());
    const Definition exact(p, large.mixing(), target);
    for (std::size_t i = 0; i < residual.of_block.size(); ++i) {
      if (!(exact.targets[i] > 0)) continue;
      const double level = 1e-7 * std::sqrt(exact.sizes[i] / exact.targets[i]);
      ASSERT_NEAR(residual.of_block[i], std::sqrt(exact.squares[i] / exact.targets[i]), level)
          << i << ", " << p.text();
    }
  }
}

// Among rows with the same sum, or the same mean denominator, no row has a lower objective, neither
// a near row nor a far row.
TEST(MixingFit, NoOtherRowIsBetter) {
  int checked = 0;
  for (const std::uint64_t seed : seeds(300)) {
    Problem<double> p = random_problem<double>(seed, seed % 2 == 0);
    p.q = p.q.cwiseAbs(), p.k = p.k.cwiseAbs();
    p.normalizer_q = p.normalizer_q.cwiseAbs(), p.normalizer_k = p.normalizer_k.cwiseAbs();
    p.coefficients = p.coefficients.cwiseAbs();
    Random rng(seed);
    const Matrix<double> target = rng.matrix<double>(p.q.rows(), p.v.cols());
    Fit fit(p.mixing(), p.order());
    add(fit, p, target);
    const bool sum_to_one = p.normalizer == WeightSums::kNone && rng.chance(0.5);
    if (p.normalizer != WeightSums::kNone && Definition(p, p.mixing(), target).nothing_divides())
      continue;
    const MixingMatrix<double> m = fit.solve({.sum_to_one = sum_to_one});
    const Definition least(p, m, target);
    for (int trial = 0; trial < 5; ++trial) {
      MixingMatrix<double> other = m;
      const auto each = [&](Index i, auto&& f) {
        other.view().for_each_in_row(i, [&](Index b, double& c) {
          if (!p.causal || b <= i) f(c);
        });
      };
      for (Index i = 0; i < m.rows(); ++i) {
        each(i, [&](double& c) {
          if (least.targets[static_cast<std::size_t>(i)] > 0) {
            ASSERT_GE(c, 0) << p.text();
          }
          if (rng.chance(0.5)) c += (trial < 3 ? 1e-3 : 1) * rng.uniform();
        });
      }
      const Definition unscaled(p, other, target);
      std::vector<bool> comparable(least.targets.size());
      for (Index i = 0; i < m.rows(); ++i) {
        const std::size_t row = static_cast<std::size_t>(i);
        double sum = 0, factor = 1;
        each(i, [&](double c) { sum += c; });
        if (sum_to_one) {
          factor = 1 / sum;
        } else if (p.normalizer != WeightSums::kNone) {
          factor = least.denominators[row] / unscaled.denominators[row];
        }
        each(i, [&](double& c) { c *= factor; });
        comparable[row] = std::isfinite(factor) && factor > 0;
      }
      const Definition there(p, other, target);
      for (std::size_t i = 0; i < least.squares.size(); ++i) {
        if (!comparable[i] || !(least.targets[i] > 0)) continue;
        const double rounding = 1e-12 * (there.sizes[i] + least.sizes[i]);
        ASSERT_LE(least.squares[i], there.squares[i] + rounding) << i << ", " << p.text();
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

}  // namespace
}  // namespace mhla::test
