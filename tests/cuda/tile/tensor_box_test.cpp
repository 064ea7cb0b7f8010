#include "mhla/cuda/tile/tensor_box.cuh"

#include <gtest/gtest.h>

#include "mhla/cuda/tile/layout.cuh"

namespace mhla::cuda {
namespace {

constexpr TensorBox box_of(std::uint32_t columns, std::uint32_t rows, std::uint32_t frames) {
  return {nullptr,
          {1536, 50, 30, 21, 2},
          {3072, 153600, 4608000, 96768000},
          {64, columns, rows, frames, 1}};
}

// A box of a video's block, and a box of a sequence, is one panel of a tile.
static_assert(box_of(5, 6, 7).bytes() == 210 * 128);
static_assert(box_of(64, 1, 1).bytes() == SharedTile<64, 64>::kPanelBytes);
static_assert(box_of(256, 1, 1).bytes() == SharedTile<256, 64>::kBytes);

TEST(TensorBox, CountsTheBytesOfTheWholeBox) {
  EXPECT_EQ(box_of(5, 6, 7).bytes(), 2u * 64 * 5 * 6 * 7);
  EXPECT_EQ(box_of(1, 1, 1).bytes(), 128u);
}

TEST(TensorBox, RowsAreSwizzledPanelsOrAllColumns) {
  TensorBox box = box_of(16, 1, 1);
  EXPECT_TRUE(box.swizzled());
  EXPECT_EQ(box_columns(256), 64);
  box.box[0] = static_cast<std::uint32_t>(box_columns(72));
  EXPECT_FALSE(box.swizzled());
  EXPECT_EQ(box.bytes(), (SharedTile<16, 72>::kBytes));
}

}  // namespace
}  // namespace mhla::cuda
