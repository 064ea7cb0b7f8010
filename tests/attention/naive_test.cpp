#include "mhla/attention/naive.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

template <class Z>
NaiveProblem<double, Z> two_blocks_of_two(const Z& normalizer) {
  NaiveProblem<double, Z> p{};
  p.q = (Matrix<double>(4, 1) << 1, 2, 3, 4).finished();
  p.k = (Matrix<double>(4, 1) << 1, 1, 2, 1).finished();
  p.v = (Matrix<double>(4, 1) << 1, 2, 4, 8).finished();
  p.mixing = (Matrix<double>(2, 2) << 1, 0.5, 0.25, 1).finished();
  p.query_block = p.key_block = {0, 0, 1, 1};
  p.query_slot = {0, 1, 0, 1};
  p.normalizer = normalizer;
  return p;
}

Matrix<double> column(double a, double b, double c, double d) {
  return (Matrix<double>(4, 1) << a, b, c, d).finished();
}

// Worked out by hand from the equations in the header.
TEST(Naive, IsTheDefinitionOnAnExampleByHand) {
  // Query 0: 1 (1*1 + 1*2) + 0.5 (2*4 + 1*8) = 11; queries of a block differ by q.
  EXPECT_EQ(naive_attention(two_blocks_of_two(NoNormalizer{})),
            column(11, 22, 3 * 16.75, 4 * 16.75));
  const auto p = two_blocks_of_two(KeySum{});
  // Query 0: den = 1*2 + 0.5*3 = 3.5; query 2: 3 (0.25*2 + 3) = 10.5.
  EXPECT_EQ(naive_denominators(p), column(3.5, 7, 10.5, 14));
  EXPECT_DOUBLE_EQ(naive_attention(p)(2, 0), 3 * 16.75 / 10.5);
}

TEST(Naive, CausalReadsTheTokenItselfAndWhatCameBefore) {
  auto p = two_blocks_of_two(NoNormalizer{});
  p.order = Order::kCausal;
  // Query 2: 3 (0.25 (1 + 2) + 1*2*4) = 26.25.
  EXPECT_EQ(naive_attention(p), column(1, 6, 26.25, 4 * 16.75));
  auto summed = two_blocks_of_two(KeySum{});
  summed.order = Order::kCausal;
  // Query 2: den = 3 (0.25*2 + 1*2) = 7.5.
  EXPECT_EQ(naive_denominators(summed), column(1, 4, 7.5, 14));
}

TEST(Naive, CrossQueryMixesTheQueriesOfOtherBlocksInTheSameSlot) {
  const Matrix<double> den = naive_denominators(two_blocks_of_two(CrossQuery{0.5}));
  // Slot 0 of block 0: m_00 q_0 z_0 + m_01 q_2 z_1 + eps = 1*1*2 + 0.5*3*3 + 0.5 = 7.
  EXPECT_DOUBLE_EQ(den(0, 0), 7);
  // Slot 1 of block 1: 0.25*2*2 + 1*4*3 + 0.5 = 13.5.
  EXPECT_DOUBLE_EQ(den(3, 0), 13.5);
}

TEST(Naive, MaskedTokensAreLeftOut) {
  auto p = two_blocks_of_two(KeySum{});
  p.key_kept = {true, false, true, true};
  p.query_kept = {true, true, false, true};
  p.k(1, 0) = p.v(1, 0) = p.q(2, 0) = NAN;
  // Query 0: num = 1*1 + 0.5*16 = 9, den = 1 + 1.5 = 2.5.
  EXPECT_DOUBLE_EQ(naive_attention(p)(0, 0), 9 / 2.5);
  EXPECT_EQ(naive_attention(p)(2, 0), 0);
}

TEST(Naive, AnOutputOverZeroIsZeroOrInfinite) {
  auto p = two_blocks_of_two(KeySum{});
  p.order = Order::kCausal;
  p.k(1, 0) = -p.k(0, 0);  // query 1: den = 0
  p.v = (Matrix<double>(4, 2) << 1, 1, 1, 2, 1, 1, 1, 1).finished();
  EXPECT_EQ(naive_attention(p)(1, 0), 0);
  EXPECT_EQ(naive_attention(p)(1, 1), -INFINITY);
}

TEST(Naive, TakesTheArgumentsOfAForm) {
  Random rng(1);
  const auto q = rng.matrix<double>(6, 2), k = rng.matrix<double>(4, 2),
             v = rng.matrix<double>(4, 3);
  const auto denominator_q = rng.matrix<double>(6, 1, 0, 1),
             denominator_k = rng.matrix<double>(4, 1, 0, 1);
  const Matrix<double> mixing = rng.matrix<double>(3, 2, 0, 1);
  auto in = inputs(q, k, v);
  in.normalizer_q = denominator_q;
  in.normalizer_k = denominator_k;
  const std::array<bool, 4> keep{true, true, false, true};
  in.key_mask = keep;
  const Operator op{Relu{0.5}, Relu{0.25}, KeySum{0.125}, 3};
  const CrossBlocks blocks{Contiguous(6, 2), Contiguous(4, 2)};
  // Computed with Eigen: weights m (3 relu(q)) relu(k)^T, column 2 left out, and eps.
  const auto spread = [&](Index t, Index j) { return mixing(t / 2, j / 2) * (j == 2 ? 0 : 3); };
  const auto weights = [&](const Matrix<double>& x, const Matrix<double>& y) {
    const Matrix<double> a = (x.cwiseMax(0).array() + 0.5).matrix() *
                             (y.cwiseMax(0).array() + 0.25).matrix().transpose();
    return Matrix<double>(a.cwiseProduct(Matrix<double>::NullaryExpr(6, 4, spread)));
  };
  const Matrix<double> den = weights(denominator_q, denominator_k).rowwise().sum().array() + 0.125;
  const Matrix<double> expected = den.col(0).asDiagonal().inverse() * (weights(q, k) * v);
  const Matrix<double> o = naive_attention(in, blocks, MixingMatrix<double>(mixing), op);
  EXPECT_LE((o - expected).cwiseAbs().maxCoeff(), 1e-14);
}

TEST(Naive, RefusesQueriesOfADenominatorWithoutAFeature) {
  const Matrix<float> x = Matrix<float>::Constant(5, 1, 2), nothing(5, 0);
  auto in = inputs(x, x, x);
  in.normalizer_q = in.normalizer_k = nothing;
  const auto run = [&](const auto& normalizer) {
    return naive_attention(in, Contiguous(5, 5), MixingMatrix<float>(Matrix<float>::Ones(1, 1)),
                           Operator{Relu{}, Relu{}, normalizer});
  };
  EXPECT_EQ(message_of<shape_error>([&] { run(KeySum{1}); }),
            "mhla::naive_problem: normalizer_q has shape [5, 0], expected at least 1 feature, or "
            "none of normalizer_q and normalizer_k");
  EXPECT_EQ(message_of<shape_error>([&] { run(NoNormalizer{}); }), "no exception");
}

TEST(Naive, MapsFeaturesInTheAccumulatorAndTheRestInAWiderType) {
  const Matrix<float> x = Matrix<float>::Constant(1, 1, 0.1f), one = Matrix<float>::Ones(1, 1);
  const Operator op{Exp{}, Identity{}, NoNormalizer{}};
  const auto wide =
      naive_attention<double>(inputs(x, x, one), Contiguous(1, 1), MixingMatrix<float>(one), op);
  float phi;
  Exp{}(x.data(), &phi, 1);
  EXPECT_EQ(wide(0, 0), double{phi} * double{0.1f});
}

TEST(Naive, OfABatchIsThatOfEverySequenceAndHead) {
  test::Random rng(5);
  Tensor<float> x({1, 12, 2, 3}), v({1, 12, 2, 4});
  for (Tensor<float>* t : {&x, &v}) {
    for (float& number : t->data()) number = static_cast<float>(rng.uniform(-1, 1));
  }
  const std::vector<Index> offsets{0, 8, 12};
  auto in = inputs(x, x, v);
  in.query_offsets = in.key_offsets = offsets;
  const ContiguousBlocks blocks{4};
  const auto mixing = uniform_causal<float>(2);
  const Operator op{EluPlusOne{}};
  const Tensor<double> o = naive_attention(in, blocks, mixing, op, Order::kCausal);
  EXPECT_EQ(o.shape(), (Shape{1, 12, 2, 4}));
  for (const std::size_t s : {std::size_t{0}, std::size_t{1}}) {
    const Index begin = offsets[s], count = offsets[s + 1] - begin;
    for (Index h = 0; h < 2; ++h) {
      const Inputs<float> head{.q = x.view().head(0, h, begin, count),
                               .k = x.view().head(0, h, begin, count),
                               .v = v.view().head(0, h, begin, count)};
      const Matrix<double> expected = naive_attention(head, blocks, mixing, op, Order::kCausal);
      for (Index t = 0; t < count; ++t) {
        for (Index e = 0; e < 4; ++e) EXPECT_EQ(o(0, begin + t, h, e), expected(t, e));
      }
    }
  }
}

}  // namespace
}  // namespace mhla::test
