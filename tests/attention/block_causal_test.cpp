#include "mhla/attention/block_causal.hpp"

#include "contract/forward.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "support/forward_forms.hpp"

namespace mhla::test {
namespace {

TEST_FORM(BlockCausal, forward::BlockCausal, float, double);

/// Two frames of 4 x 4 tokens in 2 x 2 blocks each.
struct Video {
  Grid grid{GridShape(2, 4, 4), GridShape(1, 2, 2)};
  Random rng{1};
  Matrix<double> q = rng.matrix<double>(32, 3), k = rng.matrix<double>(32, 3),
                 v = rng.matrix<double>(32, 2), m = rng.matrix<double>(8, 8, 0.1, 1);

  Matrix<double> run(Index step) const {
    return block_causal(inputs(q, k, v), grid, MixingMatrix<double>(m), step,
                        Operator{EluPlusOne{}, EluPlusOne{}});
  }
};

TEST(BlockCausal, AFrameReadsItselfAndEarlierFramesAlone) {
  Video video;
  const Matrix<double> out = video.run(4);
  video.k.bottomRows(16).setConstant(NAN);
  video.v.bottomRows(16).setConstant(NAN);
  const Matrix<double> unread = video.run(4);
  EXPECT_TRUE(same_bits<double>(out.topRows(16), unread.topRows(16)));
  EXPECT_TRUE(unread.bottomRows(16).array().isNaN().all());
}

TEST(BlockCausal, CoefficientsOfLaterStepsAreNotRead) {
  Video video;
  const Matrix<double> out = video.run(4), in_steps_of_one = video.run(1);
  video.m.topRightCorner(4, 4).setConstant(NAN);
  EXPECT_TRUE(same_bits(out, video.run(4)));
  video.m.triangularView<Eigen::StrictlyUpper>().setConstant(NAN);
  EXPECT_TRUE(same_bits(in_steps_of_one, video.run(1)));
  EXPECT_TRUE(video.run(4).array().isNaN().any());
}

TEST(BlockCausal, OneStepOfAllBlocksIsTheBidirectionalForm) {
  const Video video;
  const auto all =
      bidirectional(video.q, video.k, video.v, video.grid, MixingMatrix<double>(video.m),
                    Operator{EluPlusOne{}, EluPlusOne{}});
  EXPECT_TRUE(same_bits(all, video.run(8)));
  EXPECT_TRUE(same_bits(all, video.run(100)));
}

TEST(BlockCausal, StepsBelowOneListsOfLaterStepsAndCrossQueryAreRefused) {
  const Matrix<float> x = Matrix<float>::Ones(6, 2);
  const MixingMatrix<float> listed(Pattern(3, {{0}, {0, 2}, {1}}));
  const auto text = [&x](const MixingMatrix<float>& m, Index step, const auto& op) {
    return message_of<option_error>(
        [&] { block_causal(inputs(x, x, x), Contiguous(6, 2), m, step, op); });
  };
  EXPECT_EQ(text(listed, 0, Operator<>()),
            "mhla::block_causal: step is 0, expected at least 1 block");
  EXPECT_EQ(
      text(listed, 1, Operator<>()),
      "mhla::block_causal: mixing lists block 2 for block 1, expected blocks of no later step, "
      "up to 1");
  const Pattern in_pairs = Pattern(3, 3).block_causal(2);
  EXPECT_EQ(text(MixingMatrix<float>(in_pairs), 1, Operator<>()),
            "mhla::block_causal: mixing has steps of 2 blocks, expected steps of 1, or a matrix "
            "without steps");
  EXPECT_EQ(text(MixingMatrix<float>(Matrix<float>::Ones(3, 3)), 1,
                 Operator{Relu{}, Relu{}, AnyNormalizer(WeightSums::kCrossQuery, 1)}),
            "mhla::block_causal: normalizer is CrossQuery, which reads later queries, expected a "
            "normaliser of the token's own weights, or none");
}

}  // namespace
}  // namespace mhla::test
