#include "mhla/attention/bidirectional.hpp"

#include "contract/forward.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/locality.hpp"

namespace mhla::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Bidirectional, Forward, WideScalars<forward::Bidirectional>,
                               ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Bidirectional, KeptSummaries, WideScalars<forward::Bidirectional>,
                               ScalarNames);

/// One head with the paper's maps.
Problem<double> problem_of(Index n, Index block_length, const Matrix<double>& mixing) {
  Random rng(static_cast<std::uint64_t>(n));
  Problem<double> p;
  p.q = rng.matrix<double>(n, 6);
  p.k = rng.matrix<double>(n, 6);
  p.v = rng.matrix<double>(n, 5);
  p.query_map = p.key_map = {Relu{}};
  p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(n, block_length));
  p.coefficients = mixing;
  p.lower = p.upper = mixing.rows();
  return p;
}

Matrix<double> run(const Problem<double>& p) {
  return bidirectional(p.inputs(), p.blocks(), p.mixing(), p.op());
}

TEST(Bidirectional, WeightsSumToOneWithKeySum) {
  auto p = problem_of(60, 7, locality<double>(9).dense());
  p.v.setOnes();
  // Numerator and denominator are sums of the same positive terms: two chains and a division.
  EXPECT_LE((run(p).array() - 1).abs().maxCoeff(), 2 * gamma(7 + 9 + 6 + 3, 0x1p-53));
}

TEST(Bidirectional, IdentityMixingIsAttentionInsideBlocks) {
  const auto whole = problem_of(48, 16, Matrix<double>::Identity(3, 3));
  const Matrix<double> out = run(whole);
  for (Index b = 0; b < 3; ++b) {
    auto part = problem_of(16, 16, Matrix<double>::Ones(1, 1));
    part.q = whole.q.middleRows(16 * b, 16);
    part.k = whole.k.middleRows(16 * b, 16);
    part.v = whole.v.middleRows(16 * b, 16);
    EXPECT_TRUE(same_bits<double>(out.middleRows(16 * b, 16), run(part)));
  }
}

TEST(Bidirectional, PermutingBlocksWithTheMixingMatrixPermutesOutputs) {
  const Index m = 6, w = 5, order[m] = {3, 0, 5, 1, 4, 2};
  const auto p = problem_of(m * w, w, Random(5).matrix<double>(m, m, 0, 1));
  auto permuted = p;
  for (Index i = 0; i < m; ++i) {
    permuted.q.middleRows(i * w, w) = p.q.middleRows(order[i] * w, w);
    permuted.k.middleRows(i * w, w) = p.k.middleRows(order[i] * w, w);
    permuted.v.middleRows(i * w, w) = p.v.middleRows(order[i] * w, w);
    for (Index b = 0; b < m; ++b) permuted.coefficients(i, b) = p.coefficients(order[i], order[b]);
  }
  const Matrix<double> x = run(p), y = run(permuted);
  const double bound = 4 * gamma(m + w + 6 + 3, 0x1p-53) * 4;  // |o| <= 1, condition below 4
  for (Index i = 0; i < m; ++i) {
    const Matrix<double> moved = x.middleRows(order[i] * w, w);
    EXPECT_LE((y.middleRows(i * w, w) - moved).cwiseAbs().maxCoeff(), bound);
  }
}

TEST(Bidirectional, QueriesWithoutKeysGetZeroOrZeroOverZero) {
  auto p = problem_of(3, 3, Matrix<double>::Ones(1, 1));
  p.k.resize(0, 6);
  p.v.resize(0, 5);
  p.key_blocks = AnyPartition::of(Contiguous(0, 4));
  EXPECT_TRUE(run(p).array().isNaN().all());
  p.normalizer = WeightSums::kNone;
  EXPECT_TRUE(run(p).isZero(0));
  p.q.resize(0, 6);
  p.query_blocks = p.key_blocks;
  EXPECT_EQ(run(p).rows(), 0);
}

const Operator kReleased{Relu{}, Relu{}, CrossQuery{}};

TEST(Bidirectional, AFixedPartitionServesAllSequences) {
  Random rng(1);
  const forward::StridedTensor<float> q(rng, 2, 12, 3, 4);
  const Grid blocks(GridShape(3, 4), GridShape(3, 2));
  const auto mixing = locality<float>(blocks.block_grid());
  const auto out = bidirectional(inputs(q.view(), q.view(), q.view()), blocks, mixing, kReleased);
  const auto one = forward::copy<float>(q.view().head(1, 2));
  EXPECT_TRUE(same_bits(bidirectional(one, one, one, blocks, mixing, kReleased),
                        forward::copy(out.view().head(1, 2))));
}

TEST(Bidirectional, AFixedPartitionThatDoesNotFitIsRefused) {
  const Matrix<float> x = Matrix<float>::Ones(8, 4);
  const auto text = [&x](const BlockSizes& blocks, Index mixing) {
    return message_of<error>(
        [&] { bidirectional(x, x, x, blocks, locality<float>(mixing), kReleased); });
  };
  EXPECT_EQ(text({4, 4}, 3),
            "mhla::bidirectional: mixing has shape [3, 3], expected [2, 2] (query blocks, key "
            "blocks)");
  EXPECT_EQ(text({4, 5}, 2),
            "mhla::bidirectional: blocks covers 9 of 9 tokens, expected 8 tokens, all of them");
  EXPECT_EQ(text({3, 5}, 2),
            "mhla::bidirectional: normalizer is CrossQuery with blocks of 3 and 5 tokens, expected "
            "query blocks of one size");
}

}  // namespace
}  // namespace mhla::test
