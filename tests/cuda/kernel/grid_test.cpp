#include "mhla/cuda/kernel/grid.cuh"

#include <gtest/gtest.h>

#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/summary_sm80.cuh"

namespace mhla::cuda {
namespace {

// A kernel counts what it works on along x: here blocks of tokens of all pairs.
TEST(Grid, CountsAlongX) {
  SummaryParameters parameters{};
  parameters.blocks = TokenBlocks(1, 1, 100, 1, 1, 16);
  const Grid grid = SummarySm80<half, 64, 64, Precision::kSingle>::grid(parameters, 70000);
  EXPECT_EQ(grid.x, 7u * 70000);
  EXPECT_EQ(grid.y, 1u);
  EXPECT_EQ(grid.z, 1u);
}

}  // namespace
}  // namespace mhla::cuda
