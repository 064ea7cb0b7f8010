#include "mhla/cuda/tile/tokens.cuh"

#include <gtest/gtest.h>

#include <cstdint>

namespace mhla::cuda {
namespace {

namespace token_tensor_tests {

constexpr bool pairs_are_numbered_by_heads() {
  for (std::int32_t heads = 1; heads <= 9; ++heads) {
    for (std::int32_t b = 0; b < 5; ++b) {
      for (std::int32_t h = 0; h < heads; ++h) {
        const BatchHead pair = batch_head(b * heads + h, heads);
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

}  // namespace token_tensor_tests

namespace slot_cursor_tests {

/// The cursor visits every step of every block, in order.
template <int kStep>
constexpr bool visits(std::int32_t slots, std::int32_t blocks) {
  SlotCursor<kStep> cursor;
  for (std::int32_t block = 0; block < blocks; ++block) {
    for (std::int32_t slot = 0; slot < slots; slot += kStep) {
      if (cursor.block != block || cursor.slot != slot) return false;
      cursor.advance(slots);
    }
  }
  return cursor.block == blocks && cursor.slot == 0;
}
static_assert(visits<16>(16, 3) && visits<16>(1, 5) && visits<16>(17, 4) && visits<32>(210, 2));

TEST(SlotCursor, VisitsAllSlotsBlockByBlock) {
  for (std::int32_t slots = 1; slots <= 300; ++slots) {
    EXPECT_TRUE(visits<16>(slots, 5)) << slots;
    EXPECT_TRUE(visits<80>(slots, 5)) << slots;
  }
}

}  // namespace slot_cursor_tests

}  // namespace
}  // namespace mhla::cuda
