#include "mhla/attention/bidirectional.hpp"

#include <cmath>

#include "contract/forward.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/locality.hpp"
#include "support/forward_forms.hpp"
#include "support/strided_tensor.hpp"

namespace mhla::test {
namespace {

TEST_FORM(Bidirectional, forward::Bidirectional, float, double);

TEST(Bidirectional, QueriesWithoutKeysGetZero) {
  Problem<double> p;
  p.q = Matrix<double>::Ones(3, 6);
  p.k.resize(0, 6);
  p.v.resize(0, 5);
  p.query_blocks = AnyPartition::of(Contiguous(3, 3));
  p.coefficients = Matrix<double>::Ones(1, 1);
  const auto run = [&p] { return bidirectional(p.inputs(), p.blocks(), p.mixing(), p.op()); };
  EXPECT_TRUE(run().isZero(0));
  p.normalizer = WeightSums::kNone;
  EXPECT_TRUE(run().isZero(0));
  p.q.resize(0, 6);
  p.query_blocks = p.key_blocks;
  EXPECT_EQ(run().rows(), 0);
}

TEST(Bidirectional, ExpOfLargeKeysIsNaNAndANumberSubtractedFromAllOfThemCancels) {
  constexpr Index kTokens = 20, kWidth = 4;
  Random rng(1);
  const Matrix<float> q = rng.matrix<float>(kTokens, kWidth), v = rng.matrix<float>(kTokens, 3);
  const Matrix<float> k = rng.matrix<float>(kTokens, kWidth, 90, 100);
  const Matrix<float> less = k.array() - k.maxCoeff();
  const auto run = [&](const Matrix<float>& keys) {
    return bidirectional(q, keys, v, Contiguous(kTokens, kTokens),
                         MixingMatrix<float>(Matrix<float>::Ones(1, 1)), Operator{Exp{}});
  };
  EXPECT_TRUE(run(k).array().isNaN().all());
  const Matrix<float> out = run(less);
  for (Index t = 0; t < kTokens; ++t) {
    for (Index e = 0; e < 3; ++e) {
      long double sum = 0, weights = 0;
      for (Index j = 0; j < kTokens; ++j) {
        for (Index d = 0; d < kWidth; ++d) {
          const long double weight = std::exp(static_cast<long double>(q(t, d)) + k(j, d));
          weights += weight;
          sum += weight * v(j, e);
        }
      }
      EXPECT_NEAR(out(t, e), static_cast<double>(sum / weights), 1e-5) << t << " " << e;
    }
  }
}

const Operator kReleased{Relu{}, Relu{}, CrossQuery{}};

TEST(Bidirectional, AFixedPartitionServesAllSequences) {
  Random rng(1);
  const StridedTensor<float> q(rng, {2, 12, 3, 4});
  const Grid blocks(GridShape(3, 4), GridShape(3, 2));
  const auto mixing = locality<float>(blocks.block_grid());
  const auto out = bidirectional(inputs(q.view(), q.view(), q.view()), blocks, mixing, kReleased);
  const auto one = dense(q.view().head(1, 2));
  EXPECT_TRUE(same_bits(bidirectional(one, one, one, blocks, mixing, kReleased),
                        dense(out.view().head(1, 2))));
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
            "mhla::bidirectional: blocks covers 9 tokens, expected 8 tokens: one per row, or along "
            "axis 1 of [B, N, H, D]");
  EXPECT_EQ(text({3, 5}, 2),
            "mhla::bidirectional: normalizer is CrossQuery with blocks of 3 and 5 tokens, expected "
            "query blocks of one size");
}

}  // namespace
}  // namespace mhla::test
