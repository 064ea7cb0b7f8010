#include "mhla/fit/nonnegative.hpp"

#include <gtest/gtest.h>

#include <Eigen/QR>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

/// |A x - f|^2 from its Gram matrix, and by its definition.
struct LeastSquares {
  Matrix<double> a;  // [rows,n]
  Matrix<double> f;  // [rows,1]
  Matrix<double> gram, right;

  LeastSquares(Matrix<double> a_, Matrix<double> f_)
      : a(a_), f(f_), gram(a.transpose() * a), right(a.transpose() * f) {}

  Index size() const { return a.cols(); }
  std::vector<double> solution(const NonnegativeOptions& options = {}) const {
    return nonnegative_least_squares(gram, {right.data(), static_cast<std::size_t>(right.size())},
                                     options);
  }
  double residual(const std::vector<double>& x) const {
    return (a * Eigen::Map<const Eigen::VectorXd>(x.data(), size()) - f).squaredNorm();
  }
};

/// A random problem; some have columns that are equal, 0 or combinations of others.
LeastSquares random_problem(Random& rng) {
  const Index n = rng.integer(1, 6), rows = rng.integer(1, 8);
  Matrix<double> a = rng.matrix<double>(rows, n, rng.chance(0.5) ? 0 : -1, 1);
  if (rng.chance(0.2)) a.col(rng.integer(0, n - 1)) = a.col(0);
  if (rng.chance(0.1)) a.col(rng.integer(0, n - 1)).setZero();
  if (rng.chance(0.2)) a.col(n - 1) = a.rowwise().sum() / 2;
  Matrix<double> f = rng.matrix<double>(rows, 1, rng.chance(0.3) ? -2 : 0, 2);
  if (rng.chance(0.1)) f.setZero();
  if (rng.chance(0.2)) f = a * rng.matrix<double>(n, 1, 0, 0.5);  // residual 0 is possible
  return {a, f};
}

Index nonzeros(const std::vector<double>& x) {
  return static_cast<Index>(std::count_if(x.begin(), x.end(), [](double y) { return y != 0; }));
}

/// w^T x, which is 1 if there are weights.
double weighted_sum(const std::vector<double>& weights, const std::vector<double>& x) {
  return std::inner_product(weights.begin(), weights.end(), x.begin(), 0.0);
}

/// No weights, weights of 1, or any weights. The first is above 0, so a sum of 1 is possible.
std::vector<double> random_weights(Random& rng, Index n) {
  std::vector<double> weights(rng.chance(0.4) ? 0 : static_cast<std::size_t>(n), 1.0);
  if (rng.chance(0.5)) return weights;
  for (double& w : weights) w = rng.chance(0.1) ? 0 : rng.uniform(rng.chance(0.1) ? -1 : 0.1, 2);
  if (!weights.empty()) weights[0] = 0.7;
  return weights;
}

/// Least residual over all choices of at most `most` entries. Choices with a negative entry are
/// skipped.
double least_residual(const LeastSquares& p, const std::vector<double>& weights, Index most) {
  const bool fixed = !weights.empty();
  double least = fixed ? std::numeric_limits<double>::infinity() : p.f.squaredNorm();
  for (unsigned choice = 1; choice < 1u << p.size(); ++choice) {
    std::vector<Index> chosen;
    for (Index j = 0; j < p.size(); ++j) {
      if ((choice >> j & 1) != 0) chosen.push_back(j);
    }
    const Index count = static_cast<Index>(chosen.size());
    if (count > most) continue;
    // With a given sum, one entry follows from the others, so there is no constraint left.
    const auto weight = [&](Index j) { return fixed ? weights[static_cast<std::size_t>(j)] : 0; };
    std::sort(chosen.begin(), chosen.end(),
              [&](Index a, Index b) { return std::abs(weight(a)) < std::abs(weight(b)); });
    const Index last = chosen.back(), variables = fixed ? count - 1 : count;
    if (fixed && weight(last) == 0) continue;
    Eigen::MatrixXd a(p.a.rows(), variables);
    Eigen::VectorXd f = p.f;
    if (fixed) f -= p.a.col(last) / weight(last);
    for (Index j = 0; j < variables; ++j) {
      const Index column = chosen[static_cast<std::size_t>(j)];
      a.col(j) = p.a.col(column);
      if (fixed) a.col(j) -= p.a.col(last) * (weight(column) / weight(last));
    }
    Eigen::VectorXd x = Eigen::VectorXd::Zero(variables);
    if (variables > 0) x = a.completeOrthogonalDecomposition().solve(f);
    double rest = fixed ? 1 : 0;
    for (Index j = 0; j < variables; ++j)
      rest -= weight(chosen[static_cast<std::size_t>(j)]) * x(j);
    if (fixed && rest / weight(last) < -1e-12) continue;
    if (variables > 0 && x.minCoeff() < -1e-12) continue;
    least = std::min(least, (a * x - f).squaredNorm());
  }
  return least;
}

TEST(Nonnegative, IsTheBestOfAllChoicesOfEntries) {
  Random rng(1);
  for (int k = 0; k < 3000; ++k) {
    const LeastSquares p = random_problem(rng);
    const std::vector<double> weights = random_weights(rng, p.size());
    const std::vector<double> x = p.solution({.weights = weights});
    for (const double y : x) ASSERT_GE(y, 0) << k;
    if (!weights.empty()) {
      ASSERT_NEAR(weighted_sum(weights, x), 1, 1e-12) << k;
    }
    const double scale = p.gram.trace() + p.f.squaredNorm();
    ASSERT_NEAR(p.residual(x), least_residual(p, weights, p.size()), 1e-11 * scale) << k;
  }
}

TEST(Nonnegative, KeepsTheLimitOnNonzerosAndMostlyFindsTheBestChoice) {
  Random rng(2);
  int best = 0;
  constexpr int kProblems = 1000;
  for (int k = 0; k < kProblems; ++k) {
    const LeastSquares p = random_problem(rng);
    const std::vector<double> weights = random_weights(rng, p.size());
    const NonnegativeOptions options{.weights = weights, .nonzeros = rng.integer(1, 3)};
    const std::vector<double> x = p.solution(options);
    ASSERT_LE(nonzeros(x), options.nonzeros) << k;
    if (!weights.empty()) {
      ASSERT_NEAR(weighted_sum(weights, x), 1, 1e-12) << k;
    }
    const double least = least_residual(p, weights, options.nonzeros);
    const double rounding = 1e-11 * (p.gram.trace() + p.f.squaredNorm());
    ASSERT_GE(p.residual(x), least - rounding) << k;
    best += p.residual(x) <= least + rounding;
  }
  EXPECT_GT(best, 0.9 * kProblems);
}

// A limit takes out what a new solution after each removal would.
TEST(Nonnegative, TakesOutTheCheapestEntryEachTime) {
  Index freed = 0;  // entries that were 0 and are not after a removal
  for (int k = 0; k < 200; ++k) {
    Random rng(static_cast<std::uint64_t>(k));
    constexpr Index kCount = 20, kMost = 8;
    const Matrix<double> a = rng.matrix<double>(30, kCount, k % 2 == 0 ? -0.5 : -1, 1);
    const LeastSquares p(a, a * Matrix<double>::Ones(kCount, 1) + 2 * rng.matrix<double>(30, 1));
    std::vector<Index> left(kCount), support;
    std::iota(left.begin(), left.end(), 0);
    std::vector<double> expected;
    while (true) {
      const std::vector<double> x = LeastSquares(p.a(Eigen::all, left), p.f).solution();
      const std::vector<Index> before = support;
      support.clear(), expected.assign(kCount, 0);
      for (std::size_t n = 0; n < left.size(); ++n) {
        expected[static_cast<std::size_t>(left[n])] = x[n];
        if (x[n] > 0) support.push_back(left[n]);
      }
      for (const Index j : support) {
        freed += !before.empty() && std::find(before.begin(), before.end(), j) == before.end();
      }
      if (std::ssize(support) <= kMost) break;
      const auto residual = [&](Index without) {  // of any sign
        std::vector<Index> rest = support;
        std::erase(rest, without);
        const Eigen::MatrixXd columns = p.a(Eigen::all, rest);
        return (columns * columns.completeOrthogonalDecomposition().solve(p.f) - p.f).norm();
      };
      std::erase(left, *std::min_element(support.begin(), support.end(), [&](Index b, Index c) {
                   return residual(b) < residual(c);
                 }));
    }
    const std::vector<double> x = p.solution({.nonzeros = kMost});
    for (std::size_t j = 0; j < expected.size(); ++j) {
      EXPECT_NEAR(x[j], expected[j], 1e-9) << k << ", " << j;
    }
  }
  EXPECT_GT(freed, 20);
}

TEST(Nonnegative, TheOnlyPositiveWeightStays) {
  const std::vector<double> weights{0, 0.7, 0, -0.1, 0, 0};
  for (int k = 0; k < 300; ++k) {
    Random rng(static_cast<std::uint64_t>(k));
    const Matrix<double> a = rng.matrix<double>(9, 6, 0, 1);
    const LeastSquares p(a, a * Matrix<double>::Ones(6, 1));
    for (const Index most : {1, 2, 3}) {
      const std::vector<double> x = p.solution({.weights = weights, .nonzeros = most});
      ASSERT_NEAR(weighted_sum(weights, x), 1, 1e-12) << k;
      ASSERT_LE(nonzeros(x), most) << k;
    }
  }
}

// Entries that satisfy the Karush-Kuhn-Tucker conditions have the least residual.
TEST(Nonnegative, LargeProblemsFulfilTheConditionsOfAMinimum) {
  Random rng(3);
  for (const bool sum_to_one : {false, true}) {
    const std::vector<double> weights(sum_to_one ? 120 : 0, 1.0);
    Matrix<double> a = rng.matrix<double>(300, 120), f = rng.matrix<double>(300, 1);
    a.rightCols(20) = a.leftCols(20);  // two columns of each
    const LeastSquares p(a, f);
    const std::vector<double> x = p.solution({.weights = weights});
    const Matrix<double> slope =
        p.gram * Eigen::Map<const Eigen::VectorXd>(x.data(), p.size()) - p.right;
    double common = 0;
    for (Index j = 0; j < p.size() && sum_to_one; ++j) {
      common += slope(j, 0) * x[static_cast<std::size_t>(j)];
    }
    EXPECT_GT(nonzeros(x), sum_to_one ? 3 : 20);
    for (Index j = 0; j < p.size(); ++j) {
      EXPECT_GE(slope(j, 0) - common, -1e-10) << j;
      if (x[static_cast<std::size_t>(j)] > 0) {
        EXPECT_LE(slope(j, 0) - common, 1e-10) << j;
      }
    }
  }
}

// From scipy.optimize.nnls of SciPy 1.17, and minimize(method="SLSQP") where the sum is 1.
TEST(Nonnegative, HasTheNumbersOfScipy) {
  Matrix<double> a(8, 6), f(8, 1);
  for (Index i = 0; i < 8; ++i) {
    for (Index j = 0; j < 6; ++j) {
      a(i, j) = static_cast<double>((7 * i + 5 * j) % 11) / 11 + (i == j ? 1 : 0);
    }
    f(i, 0) = static_cast<double>((3 * i * i + 2) % 7) / 2 - 0.5;
  }
  const LeastSquares p(a, f);
  const auto expect = [&](const NonnegativeOptions& options, const std::vector<double>& scipy,
                          double tolerance) {
    const std::vector<double> x = p.solution(options);
    for (std::size_t j = 0; j < scipy.size(); ++j) EXPECT_NEAR(x[j], scipy[j], tolerance) << j;
  };
  expect({}, {0.81890823790429779, 0.21926530234922956, 0, 0, 0, 0}, 1e-14);
  const std::vector<double> ones(6, 1.0);
  expect({.weights = ones}, {0.8012295082, 0.1987704918, 0, 0, 0, 0}, 1e-6);
}

TEST(Nonnegative, NothingToSolveIsFine) {
  EXPECT_TRUE(nonnegative_least_squares(Matrix<double>(0, 0), {}).empty());
  const Matrix<double> zero = Matrix<double>::Zero(3, 3);
  const std::vector<double> right(3);
  EXPECT_EQ(nonnegative_least_squares(zero, right), right);
  const std::vector<double> x =
      nonnegative_least_squares(zero, right, {.weights = std::vector<double>(3, 1.0)});
  EXPECT_EQ(x[0] + x[1] + x[2], 1);
}

TEST(Nonnegative, RefusesWhatItCannotSolve) {
  const Matrix<double> gram = Matrix<double>::Identity(2, 2);
  const std::vector<double> right(2, 1.0), long_right(3, 1.0);
  EXPECT_EQ(message_of<shape_error>([&] { nonnegative_least_squares(gram, long_right); }),
            "mhla::nonnegative_least_squares: gram has shape [2, 2], expected [3, 3] (an entry of "
            "the right-hand side for each row)");
  EXPECT_EQ(
      message_of<option_error>([&] { nonnegative_least_squares(gram, right, {.nonzeros = -1}); }),
      "mhla::nonnegative_least_squares: nonzeros is -1, expected at least 0");
  const std::vector<double> none(2, 0.0);
  EXPECT_EQ(
      message_of<option_error>([&] { nonnegative_least_squares(gram, right, {.weights = none}); }),
      "mhla::nonnegative_least_squares: weights has no entry above 0, expected at least "
      "one above 0");
  EXPECT_EQ(message_of<shape_error>(
                [&] { nonnegative_least_squares(gram, right, {.weights = long_right}); }),
            "mhla::nonnegative_least_squares: weights has 3 entries, expected none or 2");
  Matrix<double> broken = gram;
  broken(1, 0) = std::nan("");
  EXPECT_EQ(message_of<option_error>([&] { nonnegative_least_squares(broken, right); }),
            "mhla::nonnegative_least_squares: gram holds nan, expected finite numbers");
}

}  // namespace
}  // namespace mhla::test
