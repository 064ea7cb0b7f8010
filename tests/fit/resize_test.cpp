#include "mhla/fit/resize.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

constexpr ResizeOptions kInBlocks{.unit = DistanceUnit::kBlock};

/// |a - b| / |b|.
double relative_distance(const MixingMatrix<double>& a, const MixingMatrix<double>& b) {
  return (a.dense() - b.dense()).norm() / b.dense().norm();
}

MixingMatrix<double> exp_locality(GridShape queries, GridShape keys, double sigma) {
  return locality<double>(queries, keys, {.falloff = Falloff::kExp, .sigma = sigma});
}

/// Mixing matrix kappa of the distance between blocks of an image.
template <class Kappa>
MixingMatrix<double> image_kernel(GridShape grid, double height, double width, Kappa&& kappa) {
  const Index blocks = grid[1] * grid[2];
  Matrix<double> m(blocks, blocks);
  for (Index i = 0; i < blocks; ++i) {
    for (Index b = 0; b < blocks; ++b) {
      m(i, b) = kappa(std::hypot(height * static_cast<double>(i / grid[2] - b / grid[2]),
                                 width * static_cast<double>(i % grid[2] - b % grid[2])));
    }
  }
  return MixingMatrix<double>(m);
}

TEST(Resize, FunctionsOfDistanceComeBackOnTheirGrid) {
  for (const GridShape grid : {GridShape(4, 4), GridShape(16), GridShape(2, 3, 5)}) {
    for (const SumToOne sums : {SumToOne::kRows, SumToOne::kColumns, SumToOne::kNothing}) {
      for (const Falloff falloff :
           {Falloff::kExp, Falloff::kGaussian, Falloff::kLinear, Falloff::kCos, Falloff::kLocal}) {
        // With rows that sum to 1, other falloffs have a largest distance per row.
        if (sums == SumToOne::kRows && falloff != Falloff::kExp && falloff != Falloff::kLocal)
          continue;
        const bool decays = falloff == Falloff::kExp || falloff == Falloff::kGaussian;
        const auto m = locality<double>(grid, {.falloff = falloff, .sum_to_one = sums});
        const auto same = resize(m, grid, grid, {.sum_to_one = sums});
        const double apart = relative_distance(same.mixing, m);
        EXPECT_LT(apart, decays ? 1e-4 : 0.006) << static_cast<int>(falloff);
        EXPECT_NEAR(same.residual, apart, 1e-9);
      }
    }
  }
}

TEST(Resize, DistancesBetweenAndBeyondThoseOfTheGrid) {
  const auto in_blocks = [](GridShape from, GridShape to) {
    const auto resized = resize(exp_locality(from, from, 2), from, to, kInBlocks);
    return relative_distance(resized.mixing, exp_locality(to, to, 2));
  };
  EXPECT_LT(in_blocks({4, 4}, {8, 8}), 0.015);
  EXPECT_LT(in_blocks({2, 4, 4}, {3, 4, 6}), 0.015);
  const auto cross =
      resize(exp_locality({4, 4}, {6, 6}, 2), {4, 4}, {6, 6}, {8, 8}, {12, 12}, kInBlocks);
  EXPECT_LT(relative_distance(cross.mixing, exp_locality({8, 8}, {12, 12}, 2)), 0.015);
  const auto kappa = [](double d) { return std::exp(-d / 2) + 0.1; };
  const auto coarse = image_kernel({4, 6}, 1, 1, kappa);
  const auto finer = resize(coarse, {4, 6}, {8, 18}, {.sum_to_one = SumToOne::kNothing});
  EXPECT_LT(relative_distance(finer.mixing, image_kernel({8, 18}, 1.0 / 2, 1.0 / 3, kappa)), 0.005);
  const MixingMatrix<double> equal(Matrix<double>::Constant(16, 16, 0.25));
  const Matrix<double> still = resize(equal, {4, 4}, {9, 9}, kInBlocks).mixing.dense();
  EXPECT_LT((still.array() - 4.0 / 81).abs().maxCoeff(), 1e-9);
}

TEST(Resize, FactorsOfRowsAndColumnsHaveNoEffectButTheirMean) {
  Random rng(1);
  const MixingMatrix<double> m = exp_locality({4, 4}, {4, 4}, 2);
  const Matrix<double> factors = rng.matrix<double>(16, 1, 0.5, 2);
  const Matrix<double> scaled = factors.col(0).asDiagonal() * m.dense();
  const auto rows = resize(MixingMatrix<double>(scaled), {4, 4}, {6, 6});
  EXPECT_LT(rows.residual, 1e-4);
  EXPECT_LT(
      (rows.mixing.dense() - factors.mean() * resize(m, {4, 4}, {6, 6}).mixing.dense()).norm(),
      1e-3);
  const auto columns = resize(MixingMatrix<double>(scaled.transpose().eval()), {4, 4}, {6, 6},
                              {.sum_to_one = SumToOne::kColumns});
  EXPECT_LT((columns.mixing.dense().transpose() - rows.mixing.dense()).norm(), 1e-6);
}

TEST(Resize, SaysHowFarAMatrixIsFromAFunctionOfDistance) {
  Random rng(2);
  const Matrix<double> noise = rng.matrix<double>(64, 64);
  const Matrix<double> clean = exp_locality({8, 8}, {8, 8}, 2).dense();
  const Matrix<double> noisy = clean.array() * (1 + 0.5 * noise.array());
  const auto resized = resize(MixingMatrix<double>(noisy), {8, 8}, {4, 4}, kInBlocks);
  EXPECT_NEAR(resized.residual, (noisy - clean).norm() / noisy.norm(), 0.02);
  EXPECT_LT(relative_distance(resized.mixing, exp_locality({4, 4}, {4, 4}, 2)), 0.05);
  EXPECT_GT(resize(MixingMatrix<double>(noise), {8, 8}, {4, 4}).residual, 0.9);
  const auto negative = resize(MixingMatrix<double>((-clean).eval()), {8, 8}, {4, 4});
  EXPECT_EQ(negative.residual, 1);
  EXPECT_EQ(negative.mixing.dense(), (Matrix<double>::Zero(16, 16)));
}

TEST(Resize, ByDataIsNearerThanByTheSolvedMatrix) {
  Random rng(3);
  const auto q = rng.matrix<double>(256, 6), v = rng.matrix<double>(256, 5);
  const auto in = inputs(q, q, v);
  const Grid blocks({16, 16}, {4, 4});
  const auto made = exp_locality({4, 4}, {4, 4}, 1.2), finer = exp_locality({8, 8}, {8, 8}, 2.4);
  const auto check = [&](const auto& op) {
    Matrix<double> target = bidirectional(in, blocks, made, op);
    MixingFit<double> fit(locality<double>(blocks)), noisy(locality<double>(blocks));
    fit.add(in, blocks, op, target);
    EXPECT_LT(resize(fit, {4, 4}, {8, 8}).residual, 1e-6);
    EXPECT_LT(relative_distance(resize(fit, {4, 4}, {8, 8}).mixing, finer), 0.002);
    target += 0.3 * target.norm() / std::sqrt(256 * 5) * rng.matrix<double>(256, 5);
    noisy.add(in, blocks, op, target);
    const auto by_data = resize(noisy, {4, 4}, {8, 8}),
               solved = resize(noisy.solve(), {4, 4}, {8, 8});
    EXPECT_GT(by_data.residual, noisy.residual(noisy.solve()).total);
    EXPECT_LT(relative_distance(by_data.mixing, finer),
              0.8 * relative_distance(solved.mixing, finer));
  };
  check(Operator{Relu{}});
  check(Operator{Relu{}, Relu{}, NoNormalizer{}});
}

TEST(Resize, RefusesWhatIsNoMatrixOfTheGrid) {
  Matrix<float> m = Matrix<float>::Ones(4, 4);
  const auto call = [&](GridShape from, GridShape to) {
    return message_of<mhla::error>([&] { resize(MixingMatrix<float>(m), from, to); });
  };
  EXPECT_EQ(call({2, 3}, 4),
            "mhla::resize: m has shape [4, 4], expected [6, 6] (query blocks, key blocks)");
  EXPECT_EQ(call(4, {1, 0, 2}), "mhla::resize: to is [1, 0, 2], expected sizes >= 1");
  m(1, 2) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(call(4, 8),
            "mhla::resize: m has a coefficient that is not finite, expected finite ones");
  const auto of = [](const auto& start, Order order) {
    return message_of<option_error>([&] { resize(MixingFit<double>(start, order), 4, 8); });
  };
  const std::string all =
      "mhla::resize: fit is causal or starts from some coefficients alone, expected a "
      "bidirectional one of all coefficients";
  using Start = MixingMatrix<double>;
  EXPECT_EQ(of(locality<double>(4), Order::kCausal), all);
  EXPECT_EQ(of(Start::banded(4, 4, 2, 3), Order::kBidirectional), all);
  EXPECT_EQ(of(Start::banded(4, 4, 3, 3), Order::kBidirectional), "no exception");
}

}  // namespace
}  // namespace mhla::test
