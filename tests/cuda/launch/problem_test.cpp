#include "mhla/cuda/launch/problem.cuh"

#include <gtest/gtest.h>

namespace {

using mhla::cuda::Denominator;
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

}  // namespace
