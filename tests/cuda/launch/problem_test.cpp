#include "mhla/cuda/launch/problem.cuh"

#include <gtest/gtest.h>

namespace {

using mhla::cuda::Denominator;
using mhla::cuda::HeadGroup;
using mhla::cuda::Operator;
using mhla::cuda::Precision;
using mhla::cuda::Problem;

TEST(CudaOperator, IsThePapersByDefault) {
  constexpr Operator op;
  static_assert(op.denominator == Denominator::kKeySum);
  static_assert(op.summaries == Precision::kSingle);
  EXPECT_EQ(op.query_map.floor, 0);
  EXPECT_EQ(op.query_map.eps, 1e-6f);
  EXPECT_EQ(op.key_map.eps, 1e-6f);
  EXPECT_EQ(op.scale, 1);
  EXPECT_EQ(op.eps, 0);
}

TEST(CudaProblem, PairsAreSequencesTimesHeads) {
  Problem problem{};
  problem.batch = 7;
  problem.heads = 12;
  EXPECT_EQ(problem.pairs(), 84);
  problem.op.scale = 0.5f;
  problem.op.eps = 0.25f;
  EXPECT_EQ(problem.normalization().factor(2), 0.5f / (0.5f * 2 + 0.25f));
  problem.op.denominator = Denominator::kNone;
  EXPECT_EQ(problem.normalization().factor(2), 0.5f);
}

TEST(CudaProblem, PartsAreOfWholeBatchItemsOrOfSomeHeadsOfOne) {
  unsigned char bytes[2000] = {};
  Problem problem{};
  problem.batch = 3;
  problem.heads = 5;
  problem.q = {bytes, 100, 10, 50};
  problem.k = {bytes + 1, 200, 20, 50};
  problem.v = {bytes + 2, 300, 30, 50};
  problem.o = {bytes + 3, 400, 40, 50};
  const Problem plain = part_of(problem, {1, 2}, {1, 2});
  EXPECT_EQ(plain.norm.gate.data, nullptr);
  problem.norm.gated = true;
  problem.norm.gate = {bytes + 4, 500, 50, 50};
  const Problem part = part_of(problem, {2, 3}, {2, 4});
  EXPECT_EQ(part.q.data, bytes + 230);
  EXPECT_EQ(part.k.data, bytes + 461);
  EXPECT_EQ(part.v.data, bytes + 692);
  EXPECT_EQ(part.o.data, bytes + 923);
  EXPECT_EQ(part.norm.gate.data, bytes + 1154);
  EXPECT_EQ(part.batch, 1);
  EXPECT_EQ(part.heads, 2);
  for (const HeadGroup group : {HeadGroup{1, 5}, HeadGroup{2, 5}, HeadGroup{1, 2}}) {
    int pairs = 0;
    for_parts(problem, group, [&](const Problem& piece) { pairs += piece.pairs(); });
    EXPECT_EQ(pairs, 15);
  }
}

}  // namespace
