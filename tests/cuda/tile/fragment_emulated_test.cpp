#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "mhla/cuda/tile/fragment.cuh"
#include "support/cuda/in_block.hpp"

namespace mhla::cuda {
namespace {

/// Numbers tell their row and column.
template <int kColumns, int kRows>
void expect_rows(std::int32_t row, std::int32_t rows) {
  using Tile = SharedTile<kRows, kColumns>;
  Fragment<kColumns> fragments[32];
  emulator::Device device;
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    const Tile tile{ptx::shared_begin()};
    cuda_test::fill_tile(tile, lane, [](std::uint32_t r, std::uint32_t c) { return r * 256 + c; });
    fragments[lane] = load_box_rows<kColumns>(tile.begin, Tile::kPanelBytes, row, rows, lane);
  });
  EXPECT_TRUE(row + 16 > rows || report.bank_conflicts == 0);
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    for (std::uint32_t w = 0; w < Fragment<kColumns>::kWords; ++w) {
      const auto wanted = static_cast<std::uint32_t>(row) + lane / 4 + w % 2 * 8;
      const std::uint32_t own = std::min(wanted, static_cast<std::uint32_t>(rows) - 1);
      const std::uint32_t first = own * 256 + w / 2 * 8 + lane % 4 * 2;
      ASSERT_EQ(fragments[lane].x[w], first | (first + 1) << 16) << lane << " " << w;
    }
  }
}

TEST(BoxRows, AreThoseOfTheBoxAndItsLastAgain) {
  expect_rows<64, 64>(0, 64);
  expect_rows<64, 64>(48, 64);
  expect_rows<64, 56>(48, 49);
  expect_rows<128, 24>(16, 21);
  expect_rows<128, 216>(208, 210);
}

}  // namespace
}  // namespace mhla::cuda
