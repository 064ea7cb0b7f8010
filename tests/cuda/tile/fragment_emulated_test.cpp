#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "support/cuda/in_block.hpp"

namespace mhla::cuda {
namespace {

/// Every number encodes its row and column.
std::uint32_t place(std::uint32_t row, std::uint32_t column) { return row * 256 + column; }

std::uint32_t word(std::uint32_t low, std::uint32_t high) { return low | high << 16; }

template <int kColumns, int kRows>
void expect_box_rows(std::int32_t row, std::int32_t rows) {
  using Tile = SharedTile<kRows, kColumns>;
  Fragment<kColumns> fragments[32];
  emulator::Device device;
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    const Tile tile{ptx::shared_begin()};
    cuda_test::fill_tile(tile, lane, place);
    fragments[lane] = load_box_rows<kColumns>(tile.begin, Tile::kPanelBytes, row, rows, lane);
  });
  EXPECT_TRUE(row + 16 > rows || report.bank_conflicts == 0);
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    for (std::uint32_t w = 0; w < Fragment<kColumns>::kWords; ++w) {
      const auto wanted = static_cast<std::uint32_t>(row) + lane / 4 + w % 2 * 8;
      const std::uint32_t clamped = std::min(wanted, static_cast<std::uint32_t>(rows) - 1);
      const std::uint32_t first = place(clamped, w / 2 * 8 + lane % 4 * 2);
      ASSERT_EQ(fragments[lane].x[w], word(first, first + 1)) << lane << " " << w;
    }
  }
}

TEST(BoxRows, AreThoseOfTheBoxAndItsLastAgain) {
  expect_box_rows<64, 64>(0, 64);
  expect_box_rows<64, 64>(48, 64);
  expect_box_rows<64, 56>(48, 49);
  expect_box_rows<128, 24>(16, 21);
  expect_box_rows<128, 216>(208, 210);
}

template <class Tile>
void expect_rows() {
  emulator::Device device(1);
  for (std::uint32_t row = 0; row + 16 <= Tile::kRows; row += 8) {
    Fragment<Tile::kColumns> fragments[32];
    const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
      const Tile tile{ptx::shared_begin()};
      cuda_test::fill_tile(tile, lane, place);
      fragments[lane] = load_rows(tile, row, lane);
    });
    EXPECT_EQ(report.bank_conflicts, 0u);
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      for (std::uint32_t w = 0; w < Fragment<Tile::kColumns>::kWords; ++w) {
        const std::uint32_t first = place(row + lane / 4 + w % 2 * 8, w / 2 * 8 + lane % 4 * 2);
        ASSERT_EQ(fragments[lane].x[w], word(first, first + 1)) << lane << " " << w;
      }
    }
  }
}

TEST(Fragment, LoadsRowsInTheOrderOfOperands) {
  expect_rows<SharedTile<32, 64>>();
  expect_rows<SharedTile<32, 72>>();
  expect_rows<SharedTile<32, 128>>();
  expect_rows<SharedTile<16, 256>>();
}

/// Expects the A operand of the transposed tile: row 8 piece + r of A is column 8 piece + r of the
/// tile. With an odd number of pieces, the last piece is loaded twice. With an even number, callers
/// load pieces in pairs.
template <class Tile>
void expect_transposed_rows() {
  emulator::Device device(2);
  constexpr std::uint32_t kPieces = Tile::kPieces;
  for (std::uint32_t row = 0; row + 16 <= Tile::kRows; row += 8) {
    for (std::uint32_t piece = 0; piece < kPieces - (kPieces + 1) % 2; ++piece) {
      ptx::Words4 words[32];
      const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
        const Tile tile{ptx::shared_begin()};
        cuda_test::fill_tile(tile, lane, place);
        words[lane] = load_transposed_rows(tile, row, piece, lane);
      });
      EXPECT_EQ(report.bank_conflicts, 0u);
      for (std::uint32_t lane = 0; lane < 32; ++lane) {
        for (std::uint32_t w = 0; w < 4; ++w) {
          const std::uint32_t column = 8 * std::min(piece + w % 2, kPieces - 1) + lane / 4;
          const std::uint32_t first = row + w / 2 * 8 + lane % 4 * 2;
          ASSERT_EQ(words[lane].x[w], word(place(first, column), place(first + 1, column)))
              << lane << " " << w;
        }
      }
    }
  }
}

TEST(Fragment, LoadsTheOperandOfTheTransposedTile) {
  expect_transposed_rows<SharedTile<24, 72>>();
  expect_transposed_rows<SharedTile<16, 64>>();
}

}  // namespace
}  // namespace mhla::cuda
