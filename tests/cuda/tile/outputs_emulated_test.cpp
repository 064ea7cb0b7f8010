#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "emulator/async_box.hpp"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/fragment.cuh"
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

/// sums[j][i] as the tables of mma say.
template <int kTiles>
void number_sums(float (&sums)[kTiles][4], std::uint32_t lane) {
  for (std::uint32_t j = 0; j < kTiles; ++j) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      sums[j][i] = number(lane / 4 + i / 2 * 8, 8 * j + lane % 4 * 2 + i % 2);
    }
  }
}

/// Writes outputs through a tile of `kPassed` columns.
template <class T, int kTiles, int kPassed = 8 * kTiles>
void expect_output(int count) {
  constexpr std::int64_t kWidth = 8 * kTiles, kStride = kWidth + 8;
  cuda_test::Array<T> out(21 * kStride);
  emulator::Device device(2);
  device.track("o", out.data(), out.bytes(), emulator::Access::kWrite);
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    float sums[kTiles][4];
    number_sums(sums, lane);
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

/// The copy engine takes 64 columns at a time from a warp's tile and leaves out rows from `rows`
/// on.
template <class T, int kTiles>
void expect_stored(int rows) {
  constexpr std::int64_t kWidth = 8 * kTiles, kStride = kWidth + 8;
  cuda_test::Array<T> out(16 * kStride);
  const std::uint64_t stride = 2 * kStride;
  const TensorMap map = emulator::tensor_map(
      {out.raw(),
       {static_cast<std::uint64_t>(kWidth), static_cast<std::uint64_t>(rows), 1, 1, 1},
       {stride, stride, stride, stride},
       {64, 16, 1, 1, 1}});
  emulator::Device device(2);
  device.track("o", out.data(), out.bytes(), emulator::Access::kWrite);
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    const WarpTile tile{ptx::shared_begin()};
    float sums[kTiles][4];
    number_sums(sums, lane);
    store_tiles<T>(sums, RowPair{0.5f, -3.0f}, tile, lane, [&](int column) {
      ptx::cp_async_bulk_tensor_store(map, {{column, 0, 0, 0, 0}}, tile.begin,
                                      ptx::createpolicy_evict_first());
    });
    if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  EXPECT_EQ(report.count("tensor stores"), std::uint64_t{kTiles / 8});
  for (std::int64_t r = 0; r < 16; ++r) {
    for (std::int64_t c = 0; c < kStride; ++c) {
      const float factor = r < 8 ? 0.5f : -3.0f;
      const float x = number(static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(c)) * factor;
      const T wanted =
          r < rows && c < kWidth ? T{static_cast<std::uint16_t>(ptx::pack<T>(x, 0))} : T{0xFFFF};
      ASSERT_EQ(out[r * kStride + c].bits, wanted.bits) << r << " " << c;
    }
  }
}

TEST(Outputs, TilesAreStoredByTheCopyEngine) {
  expect_stored<bfloat16, 8>(16);
  expect_stored<half, 16>(11);
}

/// Expects that rows of a box are stored, and rows after the end of the box are not.
template <class T, int kTiles>
void expect_box(int column, std::int32_t row, std::int32_t rows) {
  using Panel = SharedTile<256, box_columns(8 * kTiles)>;
  constexpr int kColumns = Panel::kColumns;
  constexpr std::uint32_t kPanelBytes = 40 * 2 * kColumns, kWords = 4 * kPanelBytes / 4;
  constexpr std::uint32_t kBefore = 0x12345678;
  std::vector<std::uint32_t> seen(kWords);
  emulator::Device device(3);
  const auto report = in_block(device, [&](std::uint32_t lane) {
    const std::uint32_t begin = ptx::shared_begin();
    for (std::uint32_t i = lane; i < kWords; i += 32) ptx::st_shared(begin + 4 * i, kBefore);
    ptx::bar_sync();
    float sums[kTiles][4];
    number_sums(sums, lane);
    store_box_rows<T>(sums, {0.5f, -3.0f}, begin, kPanelBytes, column, row, rows, lane);
    ptx::bar_sync();
    for (std::uint32_t i = lane; i < kWords; i += 32) seen[i] = ptx::ld_shared(begin + 4 * i);
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  for (std::int32_t r = 0; r < 40; ++r) {
    for (int c = 0; c < 4 * kColumns; c += 2) {
      const std::uint32_t at = static_cast<std::uint32_t>(c / kColumns) * kPanelBytes +
                               Panel::offset(static_cast<std::uint32_t>(r),
                                             static_cast<std::uint32_t>(c % kColumns / 8)) +
                               static_cast<std::uint32_t>(c % 8 * 2);
      const bool stored =
          r >= row && r < row + 16 && r < rows && c >= column && c < column + 8 * kTiles;
      const auto i = static_cast<std::uint32_t>(r - row),
                 j = static_cast<std::uint32_t>(c - column);
      const float factor = i < 8 ? 0.5f : -3.0f;
      const std::uint32_t wanted =
          stored ? ptx::pack<T>(number(i, j) * factor, number(i, j + 1) * factor) : kBefore;
      ASSERT_EQ(seen[at / 4], wanted) << r << " " << c;
    }
  }
}

TEST(Outputs, RowsOfABoxAreStored) {
  expect_box<half, 8>(0, 0, 40);
  expect_box<bfloat16, 16>(128, 16, 27);
  expect_box<half, 16>(0, 32, 33);
  expect_box<half, 9>(0, 16, 27);
}

/// Expects that store_sums puts a thread's sums at the elements in the tables of mma.
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
