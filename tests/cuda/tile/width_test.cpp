#include "mhla/cuda/tile/width.cuh"

#include <gtest/gtest.h>

namespace mhla::cuda {
namespace {

TEST(Width, RowsArePanelsOf64ColumnsOrOfAll) {
  EXPECT_EQ(Width<64>::kPanelCount, 1);
  EXPECT_EQ(Width<256>::kPanelCount, 4);
  EXPECT_TRUE(Width<128>::kPanels);
  EXPECT_FALSE(Width<96>::kPanels || Width<72>::kPanels || Width<32>::kPanels);
  EXPECT_EQ(Width<96>::kRowBytes, 192);
}

TEST(Width, TheSwizzleIsThePowerOfTwoThatDividesThePieces) {
  EXPECT_EQ(Width<64>::kSwizzle, 8);
  EXPECT_EQ(Width<256>::kSwizzle, 8);
  EXPECT_EQ(Width<32>::kSwizzle, 4);
  EXPECT_EQ(Width<96>::kSwizzle, 4);
  EXPECT_EQ(Width<48>::kSwizzle, 2);
  EXPECT_EQ(Width<72>::kSwizzle, 1);
}

/// Warps and their tiles cover all rows of S, and teams have at most 16 warps.
template <int... kWidths>
bool tiles_are_shared_out() {
  return ((Width<kWidths>::kWarpTiles * Width<kWidths>::kTileWarps * 16 >= kWidths &&
           Width<kWidths>::kTeams * Width<kWidths>::kTileWarps <= 16) &&
          ...);
}

TEST(Width, WarpsShareTheRowsOfSummaries) {
  EXPECT_TRUE((tiles_are_shared_out<32, 48, 64, 72, 96, 128>()));
  EXPECT_EQ(Width<72>::kTileWarps, 5);
  EXPECT_EQ(Width<128>::kTileWarps, 4);
  EXPECT_EQ(Width<64>::kTeams, 4);
}

TEST(Width, PartsHaveAtMost128Columns) {
  EXPECT_EQ(Width<128>::kParts, 1);
  EXPECT_EQ(Width<256>::kParts, 2);
  EXPECT_EQ(Width<256>::kPart, 128);
}

}  // namespace
}  // namespace mhla::cuda
