#include <gtest/gtest.h>

#include <cstdint>

#include "mhla/cuda/tile/row_sums.cuh"
#include "support/cuda/in_block.hpp"

namespace mhla::cuda {
namespace {

// Rows from a tile: row_products_emulated_test.cpp.

TEST(RowSums, ThreadsAddTheirOwnElements) {
  const Fragment<8> rows{{ptx::pack<half>(1, 2), ptx::pack<half>(30, 40)}};
  RowPair sums{100, 1000};
  add_elements<half>(sums, rows);
  EXPECT_EQ(sums.x, 103);
  EXPECT_EQ(sums.x_8, 1070);
}

TEST(RowSums, FourThreadsOfARowAddTheirs) {
  RowPair sums[32];
  emulator::Device device;
  cuda_test::in_block(device, [&](std::uint32_t lane) {
    sums[lane] = over_row({static_cast<float>(lane), static_cast<float>(lane * lane)});
  });
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const auto first = static_cast<float>(lane / 4 * 4);
    EXPECT_EQ(sums[lane].x, 4 * first + 6);
    EXPECT_EQ(sums[lane].x_8, 4 * first * first + 12 * first + 14);
  }
}

}  // namespace
}  // namespace mhla::cuda
