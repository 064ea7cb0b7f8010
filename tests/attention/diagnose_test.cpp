#include "mhla/attention/diagnose.hpp"

#include <gtest/gtest.h>

#include "mhla/policy/locality.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

TEST(Diagnose, WeightsAreTheNaiveOnesOverTheirDenominatorsAndKeepTheRankBound) {
  int ranks = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    auto p = random_problem<double>(seed, false);
    p.v = Matrix<double>::Identity(p.k.rows(), p.k.rows());
    p.with_operator([&](const auto& op) {
      const auto d = diagnose(p.inputs(), p.query_blocks, p.key_blocks, p.mixing(), op);
      const Index m = largest_block(p.key_blocks) + p.key_blocks.blocks() +
                      p.query_map.features(p.q.cols()) + 1;
      Tally tally;
      const Expected<double> exact = expected(p, m);
      compare(p, exact, d.weights, "diagnose", tally);
      // Singular values move by at most the norm of the error (Weyl). While that is below the
      // rank's threshold, rounding cannot push one over it.
      if (d.weights.size() == 0) return;
      const double largest = d.weights.norm() / std::sqrt(static_cast<double>(d.rank_bound));
      const double threshold = static_cast<double>(std::max(d.weights.rows(), d.weights.cols())) *
                               std::numeric_limits<double>::epsilon() * largest;
      if (!((d.weights.template cast<long double>() - exact.out).norm() < threshold)) return;
      ++ranks;
      EXPECT_LE(d.rank, d.rank_bound) << p.text();
    });
  }
  EXPECT_GT(ranks, 100);
}

TEST(Diagnose, RankOfLinearAttentionIsTheWidthAndMixingRaisesIt) {
  Random rng(1);
  const Matrix<double> q = rng.matrix<double>(64, 4, 0, 1), k = rng.matrix<double>(64, 4, 0, 1);
  const Inputs<double> in{.q = q, .k = k, .v = q};
  const Contiguous one(64, 64), eight(64, 8);
  const auto linear =
      diagnose(in, one, one, MixingMatrix<double>(Matrix<double>::Ones(1, 1)), Operator{});
  EXPECT_EQ(linear.rank, 4);
  EXPECT_EQ(linear.rank_bound, 4);
  const auto mhla = diagnose(in, eight, eight, locality<double>(8), Operator{});
  EXPECT_EQ(mhla.rank_bound, 32);  // sum_b min(W, D), the mixing matrix having full rank
  EXPECT_EQ(mhla.rank, 32);
  const MixingMatrix<double> uniform(Matrix<double>::Constant(8, 8, 0.125));
  EXPECT_EQ(diagnose(in, eight, eight, uniform, Operator{}).rank, 4);  // D * rank(m)
  EXPECT_LT(mhla.entropy, linear.entropy);
}

TEST(Diagnose, EntropyOfEqualWeightsIsTheLogarithmOfTheirNumber) {
  EXPECT_NEAR(mean_row_entropy(Matrix<double>(Matrix<double>::Ones(3, 16))), std::log(16), 1e-14);
  EXPECT_EQ(mean_row_entropy(Matrix<double>(Matrix<double>::Identity(5, 5))), 0);
  EXPECT_EQ(mean_row_entropy(Matrix<double>(Matrix<double>::Zero(2, 2))), 0);
}

TEST(Diagnose, ConditionIsOneWithoutCancellationAndLargeWithIt) {
  Random rng(2);
  const Matrix<double> q = rng.matrix<double>(12, 3, 0.1, 1), k = rng.matrix<double>(12, 3, 0.1, 1);
  const Inputs<double> in{.q = q, .k = k, .v = k};
  const Contiguous blocks(12, 4);
  EXPECT_NEAR(diagnose(in, blocks, blocks, locality<double>(3), Operator{}).condition, 1, 1e-12);
  Matrix<double> m = Matrix<double>::Ones(3, 3);
  m.col(0).setConstant(-1.5);
  // Block sums of k are nearly alike, so 1 + 1 - 1.5 cancels: about 3.5 / 0.5.
  const double signed_condition =
      diagnose(in, blocks, blocks, MixingMatrix<double>(m), Operator{}).condition;
  EXPECT_GT(signed_condition, 3);
  EXPECT_NEAR(
      diagnose(in, blocks, blocks, locality<double>(3), Operator{Relu{}, Relu{}, CrossQuery{}})
          .condition,
      1, 1e-12);
  EXPECT_EQ(diagnose(in, blocks, blocks, MixingMatrix<double>(m),
                     Operator{Relu{}, Relu{}, NoNormalizer{}})
                .condition,
            1);
}

TEST(Diagnose, NumericalRankCountsSingularValuesAboveRounding) {
  Matrix<double> m = Matrix<double>::Identity(4, 4);
  m(3, 3) = 1e-17;
  EXPECT_EQ(numerical_rank(m), 3);
  m(3, 3) = 1e-12;
  EXPECT_EQ(numerical_rank(m), 4);
  EXPECT_EQ(numerical_rank(Matrix<float>(m.cast<float>())), 3);
  EXPECT_EQ(numerical_rank(Matrix<double>(0, 3)), 0);
}

}  // namespace
}  // namespace mhla::test
