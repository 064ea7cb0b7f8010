#include "mhla/fit/fit_distance.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

DistanceMixing<double> random_table(Random& rng, GridShape offsets, Index heads, bool rows) {
  DistanceMixing<double> f(offsets, heads, rows);
  for (double& x : f.storage()) x = rng.uniform(0.25, 2);
  return f;
}

double difference(const MixingMatrix<double>& a, const MixingMatrix<double>& b) {
  double most = 0;
  for (std::size_t n = 0; n < a.storage().size(); ++n) {
    most = std::max(most, std::abs(a.storage()[n] - b.storage()[n]));
  }
  return most;
}

/// A table of fewer offsets than blocks have, too.
TEST(FitDistance, FindsTheTableOfItsMatrix) {
  Random rng(1);
  const Pattern all(12, 12), triangle(12, 12, 12, 0);
  for (const GridShape offsets : {GridShape(5, 7), GridShape(3, 3), GridShape(1, 1)}) {
    for (const Pattern& pattern : {all, triangle}) {
      for (const bool rows : {false, true}) {
        const auto f = random_table(rng, offsets, 2, rows);
        const MixingMatrix<double> m = distance_matrix(f, {3, 4}, pattern);
        const auto fitted = fit_distance(m, {3, 4}, offsets, rows);
        EXPECT_EQ(fitted.mixing.heads(), 2);
        EXPECT_LT(fitted.residual, rows ? 1e-6 : 1e-14);
        EXPECT_LT(difference(distance_matrix(fitted.mixing, {3, 4}, pattern), m),
                  rows ? 1e-6 : 1e-14);
      }
    }
  }
}

TEST(FitDistance, OfCoefficientsAsTheyAreIsTheirMean) {
  Random rng(2);
  MixingMatrix<double> m(Pattern(5, 5), 2);
  m.view().for_each([&rng](double& c) { c = rng.uniform(-1, 1); });
  const auto fitted = fit_distance(m, {5}, {7}, false);
  double left = 0, all = 0;
  for (Index h = 0; h < 2; ++h) {
    for (Index offset = -3; offset <= 3; ++offset) {
      double sum = 0;
      Index count = 0;
      for (Index i = 0; i < 5; ++i) {
        for (Index b = 0; b < 5; ++b) {
          if (std::clamp<Index>(i - b, -3, 3) == offset) sum += m.of_head(h)(i, b), ++count;
        }
      }
      EXPECT_NEAR(fitted.mixing.view().at({0, 0, offset}, h), sum / static_cast<double>(count),
                  1e-15);
    }
    const Matrix<double> near = distance_matrix(fitted.mixing, {5}).of_head(h).dense();
    left += (near - m.of_head(h).dense()).squaredNorm();
    all += m.of_head(h).dense().squaredNorm();
  }
  EXPECT_NEAR(fitted.residual, std::sqrt(left / all), 1e-12);
  EXPECT_GT(fitted.residual, 0.1);
}

/// No other table of nearby numbers is nearer, where rows sum to 1.
TEST(FitDistance, OfRowsThatSumToOneIsNearestUpToItsRounds) {
  Random rng(3);
  const MixingMatrix<double> start = distance_matrix(random_table(rng, {3, 5}, 1, true), {2, 3});
  MixingMatrix<double> m = start;
  m.view().for_each([&rng](double& c) { c *= rng.uniform(0.8, 1.25); });
  normalize_rows(m);
  const auto fitted = fit_distance(m, {2, 3}, {3, 5});
  const auto distance = [&m](const DistanceMixing<double>& f) {
    return (distance_matrix(f, {2, 3}).dense() - m.dense()).norm() / m.dense().norm();
  };
  EXPECT_NEAR(fitted.residual, distance(fitted.mixing), 1e-12);
  EXPECT_LT(fitted.residual, distance(random_table(rng, {3, 5}, 1, true)));
  for (std::size_t n = 0; n < fitted.mixing.storage().size(); ++n) {
    for (const double factor : {0.8, 1.25}) {
      auto moved = fitted.mixing;
      moved.storage()[n] *= factor;
      EXPECT_GE(distance(moved), fitted.residual * 0.999) << n;
    }
  }
}

TEST(FitDistance, FindsTheTableBehindOutputs) {
  Random rng(4);
  const Matrix<double> q = rng.matrix<double>(96, 8), k = rng.matrix<double>(96, 8),
                       v = rng.matrix<double>(96, 6);
  const Contiguous blocks(96, 8);
  const auto in = inputs(q, k, v);
  for (const bool rows : {false, true}) {
    const Operator op{Relu{}, Relu{}, NoNormalizer{}};
    const auto made = distance_matrix(random_table(rng, {5}, 1, rows), {12});
    MixingFit<double> fit(locality<double>(12));
    fit.add(in, blocks, op, bidirectional(in, blocks, made, op));
    const auto fitted = fit_distance(fit, {12}, {5}, rows);
    EXPECT_LT(fitted.residual, 1e-3) << rows;
    EXPECT_LT(difference(distance_matrix(fitted.mixing, {12}), made), 1e-3) << rows;

    const auto triangle = lower_triangle(made);
    MixingFit<double> later(lower_triangle(locality<double>(12)), Order::kCausal);
    later.add(in, blocks, op, causal(in, blocks, triangle, op));
    EXPECT_LT(fit_distance(later, {12}, {5}, false).residual, rows ? 0.2 : 1e-3);
  }
}

TEST(FitDistance, RefusesWhatIsNoMatrixOfTheGrid) {
  const auto text = [](auto&& call) { return message_of<error>(call); };
  const auto m = locality<double>({2, 3});
  EXPECT_EQ(text([&] {
              fit_distance(m, {2, 4}, {3, 3});
            }),
            "mhla::fit_distance: m has shape [6, 6], expected [8, 8] (query blocks, key "
            "blocks)");
  EXPECT_EQ(text([&] {
              fit_distance(m, {2, 3}, {3, 7});
            }),
            "mhla::fit_distance: offsets is [1, 3, 7], expected at most 2 b - 1 along axes of b "
            "blocks, which are [1, 2, 3]");
  EXPECT_EQ(
      text([&] {
        fit_distance(m, {2, 3}, {2, 3});
      }),
      "mhla::DistanceMixing: offsets is [1, 2, 3], expected odd sizes, as many offsets before "
      "as after");
  EXPECT_EQ(text([&] {
              fit_distance(MixingMatrix<double>(m.pattern(), 2, 3), {2, 3}, {3, 3});
            }),
            "mhla::fit_distance: m has 3 x 2 matrices, expected one, or one per head");
  EXPECT_EQ(text([&] {
              fit_distance(MixingMatrix<double>(m.pattern()), {2, 3}, {3, 3});
            }),
            "mhla::fit_distance: m has row 0 with sum 0.000000, expected rows with a finite sum "
            "other than 0");
  const MixingMatrix<double> nan(Matrix<double>::Constant(6, 6, NAN));
  EXPECT_EQ(text([&] {
              fit_distance(nan, {2, 3}, {3, 3});
            }),
            "mhla::fit_distance: m has a coefficient that is not finite, expected finite ones");
  MixingMatrix<double> negative = m;
  negative.at(4, 1) = -0.5;
  EXPECT_EQ(text([&] {
              fit_distance(negative, {2, 3}, {3, 3});
            }),
            "mhla::fit_distance: m holds -0.500000, expected nonnegative coefficients where rows "
            "sum to 1");
  EXPECT_EQ(text([&] { fit_distance(negative, {2, 3}, {3, 3}, false); }), "no exception");
  const MixingFit<double> band(MixingMatrix<double>::banded(m.dense(), 1, 1));
  EXPECT_EQ(text([&] {
              fit_distance(band, {2, 3}, {3, 3});
            }),
            "mhla::fit_distance: fit starts from a band or lists of blocks, expected all "
            "coefficients");
}

}  // namespace
}  // namespace mhla::test
