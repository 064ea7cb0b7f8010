#include "mhla/attention/naive.hpp"

#include <gtest/gtest.h>

#include "support/random.hpp"

namespace mhla::test {
namespace {

NaiveProblem<double> two_blocks_of_two() {
  NaiveProblem<double> p;
  p.q = (Matrix<double>(4, 1) << 1, 2, 3, 4).finished();
  p.k = (Matrix<double>(4, 1) << 1, 1, 2, 1).finished();
  p.v = (Matrix<double>(4, 1) << 1, 2, 4, 8).finished();
  p.mixing = (Matrix<double>(2, 2) << 1, 0.5, 0.25, 1).finished();
  p.query_block = p.key_block = {0, 0, 1, 1};
  p.query_slot = {0, 1, 0, 1};
  return p;
}

// Written out by hand from the equations in the header.
TEST(Naive, IsTheDefinitionOnAnExampleByHand) {
  auto p = two_blocks_of_two();
  p.normalizer = NaiveNormalizer::kNone;
  // Query 0: 1 (1*1 + 1*2) + 0.5 (2*4 + 1*8) = 11; queries of a block differ by q.
  EXPECT_EQ(naive_attention(p), (Matrix<double>(4, 1) << 11, 22, 3 * 16.75, 4 * 16.75).finished());
  p.normalizer = NaiveNormalizer::kKeySum;
  // Query 0: den = 1*2 + 0.5*3 = 3.5; query 2: 3 (0.25*2 + 3) = 10.5.
  EXPECT_DOUBLE_EQ(naive_denominators(p)(0, 0), 3.5);
  EXPECT_DOUBLE_EQ(naive_denominators(p)(2, 0), 10.5);
  EXPECT_DOUBLE_EQ(naive_attention(p)(2, 0), 3 * 16.75 / 10.5);
}

TEST(Naive, CausalReadsTheTokenItselfAndWhatCameBefore) {
  auto p = two_blocks_of_two();
  p.normalizer = NaiveNormalizer::kNone;
  p.causal = true;
  // Query 2: 3 (0.25 (1 + 2) + 1*2*4) = 26.25.
  EXPECT_EQ(naive_attention(p), (Matrix<double>(4, 1) << 1, 6, 26.25, 4 * 16.75).finished());
}

TEST(Naive, CrossQueryMixesTheQueriesOfOtherBlocksInTheSameSlot) {
  auto p = two_blocks_of_two();
  p.normalizer = NaiveNormalizer::kCrossQuery;
  p.eps = 0.5;
  // Slot 0 of block 0: m_00 q_0 z_0 + m_01 q_2 z_1 + eps = 1*1*2 + 0.5*3*3 + 0.5 = 7.
  EXPECT_DOUBLE_EQ(naive_denominators(p)(0, 0), 7);
  // Slot 1 of block 1: 0.25*2*2 + 1*4*3 + 0.5 = 13.5.
  EXPECT_DOUBLE_EQ(naive_denominators(p)(3, 0), 13.5);
}

TEST(Naive, MaskedTokensAreLeftOut) {
  auto p = two_blocks_of_two();
  p.key_kept = {true, false, true, true};
  p.query_kept = {true, true, false, true};
  p.k(1, 0) = NAN;
  p.v(1, 0) = NAN;
  p.q(2, 0) = NAN;
  // Query 0: num = 1*1 + 0.5*16 = 9, den = 1 + 1.5 = 2.5.
  EXPECT_DOUBLE_EQ(naive_attention(p)(0, 0), 9 / 2.5);
  EXPECT_EQ(naive_attention(p)(2, 0), 0);
}

TEST(Naive, EqualsTheMatrixFormula) {
  Random rng(1);
  NaiveProblem<double> p;
  p.q = rng.matrix<double>(9, 4, 0, 1);
  p.k = rng.matrix<double>(7, 4, 0, 1);
  p.v = rng.matrix<double>(7, 3);
  p.mixing = rng.matrix<double>(3, 2, 0, 1);
  Matrix<double> query_block = Matrix<double>::Zero(9, 3), key_block = Matrix<double>::Zero(7, 2);
  for (Index t = 0; t < 9; ++t) {
    p.query_block.push_back(t % 3);
    query_block(t, t % 3) = 1;
  }
  for (Index j = 0; j < 7; ++j) {
    p.key_block.push_back(j / 4);
    key_block(j, j / 4) = 1;
  }
  const Matrix<double> m = query_block * p.mixing * key_block.transpose();
  const Matrix<double> a = m.cwiseProduct(p.q * p.k.transpose());
  const Matrix<double> o = a.rowwise().sum().asDiagonal().inverse() * (a * p.v);
  EXPECT_LE((naive_weights(p) - a).cwiseAbs().maxCoeff(), 1e-14);
  EXPECT_LE((naive_attention(p) - o).cwiseAbs().maxCoeff(), 1e-14);
}

}  // namespace
}  // namespace mhla::test
