#include "mhla/cuda/tile/token_tensor.cuh"

#include <gtest/gtest.h>

#include <cstdint>

namespace mhla::cuda {
namespace {

constexpr bool pairs_are_numbered_by_heads() {
  for (std::int32_t heads = 1; heads <= 9; ++heads) {
    for (std::int32_t b = 0; b < 5; ++b) {
      for (std::int32_t h = 0; h < heads; ++h) {
        const Pair pair = pair_of(b * heads + h, heads);
        if (pair.batch != b || pair.head != h) return false;
      }
    }
  }
  return true;
}
static_assert(pairs_are_numbered_by_heads());

TEST(TokenTensor, PairsAreNumberedByHeads) { EXPECT_TRUE(pairs_are_numbered_by_heads()); }

TEST(TokenTensor, HeadsBeginWhereTheStridesSay) {
  unsigned char bytes[1024];
  const TokenTensor tensor{bytes, 512, 32, 128};  // [2, 4, 4, 16]
  EXPECT_EQ(tensor.head({0, 0}), bytes);
  EXPECT_EQ(tensor.head({0, 3}), bytes + 96);
  EXPECT_EQ(tensor.head({1, 0}), bytes + 512);
  EXPECT_EQ(tensor.head({1, 3}), bytes + 512 + 96);
}

// Offsets go beyond 2^32 bytes.
static_assert(sizeof(ConstTokenTensor::batch_stride) == 8);
static_assert(sizeof(ConstTokenTensor::head_stride) == 8);
static_assert(sizeof(ConstTokenTensor::token_stride) == 8);

}  // namespace
}  // namespace mhla::cuda
