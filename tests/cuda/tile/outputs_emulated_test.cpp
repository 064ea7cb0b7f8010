#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/written_rows.hpp"

namespace mhla::cuda {
namespace {

using cuda_test::EverySecond;
using cuda_test::expect_rows;
using cuda_test::in_block;
using cuda_test::number;

/// Through a tile of `kPassed` columns.
template <class T, int kTiles, int kPassed = 8 * kTiles>
void expect_output(int count) {
  constexpr std::int64_t kWidth = 8 * kTiles, kStride = kWidth + 8;
  cuda_test::Array<T> out(21 * kStride);
  emulator::Device device(2);
  device.track("o", out.data(), out.bytes(), emulator::Access::kWrite);
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    float sums[kTiles][4];
    for (std::uint32_t j = 0; j < kTiles; ++j) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        sums[j][i] = number(lane / 4 + i / 2 * 8, 8 * j + lane % 4 * 2 + i % 2);
      }
    }
    write_sums<T>(sums, RowPair{0.5f, -3.0f}, SharedTile<16, kPassed>{ptx::shared_begin()},
                  out.raw(), 2 * kStride, EverySecond{count}, lane);
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  expect_rows(out, kWidth, kStride, count);
}

TEST(Outputs, RowsOfTokensAreWritten) {
  expect_output<bfloat16, 8>(16);
  expect_output<half, 9>(16);
  expect_output<bfloat16, 16>(11);
  expect_output<half, 32>(0);
  expect_output<bfloat16, 8, 64>(16);
  expect_output<half, 16, 64>(16);
  expect_output<bfloat16, 32, 64>(9);
}

/// store_sums puts what a thread has of sums where the tables of mma say.
template <class T, class Tile, int kTiles>
void expect_sums(std::uint32_t row, std::uint32_t piece) {
  std::vector<std::uint32_t> seen(16 * 4 * kTiles);
  emulator::Device device;
  in_block(device, [&](std::uint32_t lane) {
    const Tile tile{ptx::shared_begin()};
    float sums[kTiles][4];
    for (std::uint32_t j = 0; j < kTiles; ++j) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        sums[j][i] = static_cast<float>(16 * (8 * j + lane % 4 * 2 + i % 2) + lane / 4 + i / 2 * 8);
      }
    }
    store_sums<T, kTiles>(sums, 0, {0.5f, -0.25f}, tile, row, piece, lane);
    ptx::bar_sync();
    for (std::uint32_t i = lane; i < seen.size(); i += 32) {
      const std::uint32_t r = i / (4 * kTiles), column = i % (4 * kTiles) * 2;
      seen[i] = ptx::ld_shared(tile.piece(row + r, piece + column / 8) + column % 8 * 2);
    }
  });
  for (std::uint32_t r = 0; r < 16; ++r) {
    const float factor = r < 8 ? 0.5f : -0.25f;
    for (std::uint32_t c = 0; c < 8 * kTiles; c += 2) {
      const float x = static_cast<float>(16 * c + r), y = static_cast<float>(16 * (c + 1) + r);
      ASSERT_EQ(seen[r * 4 * kTiles + c / 2], ptx::pack<T>(x * factor, y * factor))
          << r << " " << c;
    }
  }
}

TEST(Outputs, SumsAreStoredByRowsAndColumns) {
  expect_sums<half, SharedTile<16, 64>, 8>(0, 0);
  expect_sums<bfloat16, SharedTile<32, 64>, 3>(16, 5);
  expect_sums<half, SharedTile<24, 72>, 9>(8, 0);
  expect_sums<bfloat16, SharedTile<16, 256>, 16>(0, 16);
}

}  // namespace
}  // namespace mhla::cuda
