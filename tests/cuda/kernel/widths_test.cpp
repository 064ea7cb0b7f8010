#include "mhla/cuda/kernel/widths.cuh"

#include <gtest/gtest.h>

namespace mhla::cuda {
namespace {

TEST(Widths, AreFourPairs) {
  int count = 0;
  for (int d = 0; d <= 300; ++d) {
    for (int e = 0; e <= 300; ++e) count += has_kernels(d, e) ? 1 : 0;
  }
  EXPECT_EQ(count, 4);
  EXPECT_TRUE(has_kernels(64, 64) && has_kernels(72, 72));
  EXPECT_TRUE(has_kernels(128, 128) && has_kernels(128, 256));
}

}  // namespace
}  // namespace mhla::cuda
