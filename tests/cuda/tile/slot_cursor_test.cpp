#include "mhla/cuda/tile/slot_cursor.cuh"

#include <gtest/gtest.h>

#include <cstdint>

namespace mhla::cuda {
namespace {

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

}  // namespace
}  // namespace mhla::cuda
