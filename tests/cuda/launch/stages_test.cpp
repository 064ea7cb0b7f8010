#include "mhla/cuda/launch/stages.cuh"

#include <gtest/gtest.h>

namespace {

using mhla::cuda::MixingParameters;
using mhla::cuda::Problem;
using mhla::cuda::TokenBlocks;
using mhla::cuda::WorkspaceArrays;

/// A problem and workspace arrays whose pointers and numbers all differ.
struct Parts {
  unsigned char bytes[9] = {};
  float numbers[4] = {};
  Problem problem{};
  WorkspaceArrays arrays{{bytes, bytes + 1, numbers},
                         {bytes + 2, bytes + 3, numbers + 1},
                         numbers + 2,
                         {bytes + 8, nullptr}};

  Parts() {
    problem.q.data = bytes + 4;
    problem.k.data = bytes + 5;
    problem.v.data = bytes + 6;
    problem.o.data = bytes + 7;
    problem.batch = 2;
    problem.heads = 3;
    problem.query_blocks = TokenBlocks(1, 1, 40, 1, 1, 10);
    problem.key_blocks = TokenBlocks(1, 1, 42, 1, 1, 6);
    problem.op.query_map = mhla::cuda::FeatureMap::relu(1);
    problem.op.key_map = mhla::cuda::FeatureMap::relu(2);
    problem.op.eps = 3;
    problem.op.scale = 4;
    problem.norm.eps = 5;
  }
};

TEST(Stages, QueriesAndKeysKeepTheirBlocksAndMaps) {
  const Parts p;
  const auto direct = mhla::cuda::direct_stage(p.problem, {p.numbers + 3, 9});
  EXPECT_EQ(direct.query_blocks.blocks(), 4);
  EXPECT_EQ(direct.key_blocks.blocks(), 7);
  EXPECT_EQ(direct.query_map.eps, 1);
  EXPECT_EQ(direct.key_map.eps, 2);
  EXPECT_EQ(direct.normalization.eps, 3);
  EXPECT_EQ(direct.normalization.scale, 4);
  EXPECT_EQ(direct.mixing.stride, 9);
  const auto summary = mhla::cuda::summary_stage(p.problem, p.arrays);
  EXPECT_EQ(summary.blocks.blocks(), 7);
  EXPECT_EQ(summary.map.eps, 2);
  EXPECT_EQ(summary.out.high, p.bytes);
  EXPECT_EQ(summary.heads, 3);
  const auto scores = mhla::cuda::score_stage(p.problem, p.arrays);
  EXPECT_EQ(scores.blocks.blocks(), 4);
  EXPECT_EQ(scores.map.eps, 1);
  EXPECT_EQ(scores.key_sum, p.numbers);
  EXPECT_EQ(scores.scores, p.numbers + 2);
}

TEST(Stages, ReadOutsReadMixtures) {
  const Parts p;
  const auto read_out = mhla::cuda::read_out_stage(p.problem, p.arrays, {p.numbers + 3, 9});
  EXPECT_EQ(read_out.mixtures.high, p.bytes + 2);
  EXPECT_EQ(read_out.blocks.blocks(), 4);
  EXPECT_EQ(read_out.map.eps, 1);
  EXPECT_EQ(read_out.o.data, p.bytes + 7);
  EXPECT_EQ(read_out.norm.eps, 5);
  const auto causal =
      mhla::cuda::causal_read_out_stage<64, 64>(p.problem, p.arrays, {p.numbers + 3, 9});
  EXPECT_EQ(causal.mixtures.high, p.bytes + 2);
  EXPECT_EQ(causal.query_map.eps, 1);
  EXPECT_EQ(causal.key_map.eps, 2);
  EXPECT_EQ(causal.k.data, p.bytes + 5);
  EXPECT_EQ(causal.v.data, p.bytes + 6);
  EXPECT_EQ(causal.norm.eps, 5);
}

TEST(Stages, KeySumsAreMixedWhereThereIsAPlaceForThem) {
  Parts p;
  const MixingParameters both = mhla::cuda::mixing_stage(p.problem, p.arrays, {p.numbers + 3, 9});
  EXPECT_EQ(both.rows, 4);
  EXPECT_EQ(both.rounded.high, p.bytes + 8);
  EXPECT_EQ(both.columns, 7);
  EXPECT_FALSE(both.earlier);
  EXPECT_EQ(both.in.key_sum, p.numbers);
  EXPECT_EQ(both.out.key_sum, p.numbers + 1);
  p.arrays.mixtures.key_sum = nullptr;
  p.problem.causal = true;
  const MixingParameters none = mhla::cuda::mixing_stage(p.problem, p.arrays, {p.numbers + 3, 9});
  EXPECT_EQ(none.in.key_sum, nullptr);
  EXPECT_TRUE(none.earlier);
}

}  // namespace
