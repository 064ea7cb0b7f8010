#include "mhla/attention/diagnose.hpp"

#include <gtest/gtest.h>

#include <array>

#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"
#include "support/reference.hpp"
#include "support/seeds.hpp"

namespace mhla::test {
namespace {

Diagnosis<float> diagnose(const Problem<float>& p) {
  return mhla::diagnose(p.inputs(), p.blocks(), p.mixing(), p.op());
}

/// One head of positive features.
Problem<float> problem_of(Index n, Index d, Index block_length, const Matrix<float>& mixing) {
  Random rng(1);
  Problem<float> p;
  p.q = rng.matrix<float>(n, d, 0.1, 1);
  p.k = rng.matrix<float>(n, d, 0.1, 1);
  p.v = p.k;
  p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(n, block_length));
  p.coefficients = mixing;
  p.lower = p.upper = mixing.rows();
  return p;
}

TEST(Diagnose, WeightsAreTheNaiveOnesOverTheirDenominatorsAndKeepTheRankBound) {
  int ranks = 0;
  for (const std::uint64_t seed : seeds(200)) {
    auto p = random_problem<float>(seed, false);
    p.v = Matrix<float>::Identity(p.k.rows(), p.k.rows());
    const auto d = diagnose(p);
    const Index m =
        largest_block(p.key_blocks) + p.key_blocks.blocks() + p.query_map.features(p.q.cols()) + 1;
    Tally tally;
    const Expected<float> exact = expected(p, m);
    compare(p, exact, d.weights, "diagnose", tally);
    // Singular values move by at most the norm of the error (Weyl). While this norm is below the
    // rank's threshold, rounding cannot move a singular value across it.
    if (d.weights.size() == 0) continue;
    const double largest = d.weights.norm() / std::sqrt(static_cast<double>(d.rank_bound));
    const double threshold = static_cast<double>(std::max(d.weights.rows(), d.weights.cols())) *
                             std::numeric_limits<float>::epsilon() * largest;
    if (!((d.weights.cast<double>() - exact.out).norm() < threshold)) continue;
    ++ranks;
    EXPECT_LE(d.rank, d.rank_bound) << p.text();
  }
  EXPECT_GT(ranks, 100);
}

TEST(Diagnose, RankOfLinearAttentionIsTheWidthAndMixingRaisesIt) {
  const auto linear = diagnose(problem_of(32, 2, 32, Matrix<float>::Ones(1, 1)));
  EXPECT_EQ(linear.rank, 2);
  EXPECT_EQ(linear.rank_bound, 2);
  const auto mixed = diagnose(problem_of(32, 2, 4, locality<float>(8).dense()));
  EXPECT_EQ(mixed.rank_bound, 16);  // sum_b min(W, D), the mixing matrix having full rank
  EXPECT_EQ(mixed.rank, 16);
  EXPECT_LT(mixed.entropy, linear.entropy);
  const auto uniform = diagnose(problem_of(32, 2, 4, Matrix<float>::Constant(8, 8, 0.125)));
  EXPECT_EQ(uniform.rank, 2);  // D * rank(m)
}

TEST(Diagnose, HalfPrecisionHasTheRankOfItsFeaturesAndValuesAreNotRead) {
  const auto p = problem_of(64, 4, 64, Matrix<float>::Ones(1, 1));
  const Matrix<Eigen::bfloat16> q = p.q.cast<Eigen::bfloat16>(), k = p.k.cast<Eigen::bfloat16>();
  const Inputs<Eigen::bfloat16> in{.q = q, .k = k, .v = {nullptr, 64, 8, 8}};
  const auto d = mhla::diagnose(in, Contiguous(64, 64), locality<float>(1), Operator{Relu{}});
  EXPECT_EQ(d.rank, 4);
  EXPECT_EQ(d.rank_bound, 4);
  const Inputs<Eigen::bfloat16> null{.q = {nullptr, 64, 4, 4}, .k = k, .v = k};
  EXPECT_EQ(message_of<option_error>([&] {
              mhla::diagnose(null, Contiguous(64, 64), locality<float>(1), Operator{Relu{}});
            }),
            "mhla::bidirectional: q is null with shape [64, 4], expected a pointer to data");
}

TEST(Diagnose, EntropyOfEqualWeightsIsTheLogarithmOfTheirNumber) {
  EXPECT_NEAR(mean_row_entropy(Matrix<double>(Matrix<double>::Ones(3, 16))), std::log(16), 1e-14);
  EXPECT_EQ(mean_row_entropy(Matrix<double>(Matrix<double>::Identity(5, 5))), 0);
  EXPECT_EQ(mean_row_entropy(Matrix<double>(Matrix<double>::Zero(2, 2))), 0);
}

TEST(Diagnose, ConditionIsOneWithoutCancellationAndLargeWithIt) {
  auto p = problem_of(12, 3, 4, locality<float>(3).dense());
  EXPECT_NEAR(diagnose(p).condition, 1, 1e-6);
  p.normalizer = WeightSums::kCrossQuery;
  EXPECT_NEAR(diagnose(p).condition, 1, 1e-6);
  p.coefficients.setOnes();
  p.coefficients.col(0).setConstant(-1.5);
  p.normalizer = WeightSums::kToken;
  // Block sums of k are nearly equal, so 1 + 1 - 1.5 cancels: about 3.5 / 0.5.
  EXPECT_GT(diagnose(p).condition, 3);
  p.normalizer = WeightSums::kNone;
  EXPECT_EQ(diagnose(p).condition, 1);
}

TEST(Diagnose, NumericalRankCountsSingularValuesAboveRounding) {
  Matrix<double> m = Matrix<double>::Identity(4, 4);
  m(3, 3) = 1e-17;
  EXPECT_EQ(numerical_rank(m), 3);
  m(3, 3) = 1e-12;
  EXPECT_EQ(numerical_rank(m), 4);
  EXPECT_EQ(numerical_rank(Matrix<float>(m.cast<float>())), 3);
  EXPECT_EQ(numerical_rank(Matrix<double>(0, 3)), 0);
  EXPECT_EQ(numerical_rank(Matrix<double>(Matrix<double>::Zero(2, 3))), 0);
}

/// Checks U diag(s) V^T with s = 1, 1.5 / 2, 1.5 / 4, ... and random reflections U and V, tall and
/// wide, at the ends of the range of double. The rank is the number of s above the threshold.
TEST(Diagnose, NumericalRankFindsGivenSingularValues) {
  Random rng(2);
  const auto reflection = [&](Index n, Index columns) {
    const Matrix<double> u = rng.matrix<double>(n, 1, -1, 1);
    const Matrix<double> m =
        Matrix<double>::Identity(n, n) - 2 / u.squaredNorm() * u * u.transpose();
    return Matrix<double>(m.leftCols(columns));
  };
  for (const auto& [rows, cols, values] : {std::array<Index, 3>{40, 40, 40},
                                           {60, 30, 30},
                                           {17, 50, 17},
                                           {64, 64, 60},
                                           {33, 70, 5},
                                           {1, 9, 1},
                                           {9, 1, 1},
                                           {1, 1, 1}}) {
    Eigen::VectorXd s(values);
    for (Index i = 0; i < values; ++i) s(i) = i == 0 ? 1 : std::ldexp(1.5, static_cast<int>(-i));
    const Matrix<double> m =
        reflection(rows, values) * s.asDiagonal() * reflection(cols, values).transpose();
    const auto above = [&, rows = rows, cols = cols](double epsilon) {
      const double threshold = static_cast<double>(std::max(rows, cols)) * epsilon;
      return (s.array() > threshold).count();
    };
    const Index in_float = above(std::numeric_limits<float>::epsilon());
    EXPECT_EQ(numerical_rank(Matrix<float>(m.cast<float>())), in_float) << rows << " x " << cols;
    for (const double scale : {1e-300, 1.0, 1e300}) {
      EXPECT_EQ(numerical_rank(Matrix<double>(scale * m)), above(0x1p-52)) << scale << " times";
    }
  }
}

}  // namespace
}  // namespace mhla::test
