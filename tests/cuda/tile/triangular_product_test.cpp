#include "mhla/cuda/tile/triangular_product.cuh"

#include <gtest/gtest.h>

#include <cstdint>

namespace mhla::cuda {
namespace {

TEST(LowerTriangle, ReplacesWhatIsAboveTheDiagonalByZeros) {
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const Fragment<16> lower = lower_triangle({{~0u, ~0u, ~0u, ~0u}}, lane);
    for (std::uint32_t word = 0; word < 4; ++word) {
      const std::uint32_t row = lane / 4 + word % 2 * 8, column = lane % 4 * 2 + word / 2 * 8;
      EXPECT_EQ(lower.x[word] & 0xFFFFu, column <= row ? 0xFFFFu : 0) << lane << " " << word;
      EXPECT_EQ(lower.x[word] >> 16, column + 1 <= row ? 0xFFFFu : 0) << lane << " " << word;
    }
  }
}

}  // namespace
}  // namespace mhla::cuda
