#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "mhla/cuda/tile/shared_tile.cuh"
#include "mhla/cuda/tile/token_rows.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

using cuda_test::Array;
using cuda_test::in_block;

static_assert(ConsecutiveTokens{5, 8}(0) == 5 && ConsecutiveTokens{5, 8}(2) == 7);
static_assert(ConsecutiveTokens{5, 8}(3) == -1 && ConsecutiveTokens{5, 5}(0) == -1);
static_assert(ConsecutiveTokens{std::numeric_limits<std::int32_t>::max() - 1,
                                std::numeric_limits<std::int32_t>::max()}(127) == -1);
constexpr TokenBlocks kImage(1, 4, 5, 1, 2, 3);
static_assert(BlockTokens{kImage, kImage.origin(3), 0}(0) == 13);  // row 2, column 3
static_assert(BlockTokens{kImage, kImage.origin(3), 0}(1) == 14);
static_assert(BlockTokens{kImage, kImage.origin(3), 0}(2) == -1);  // column 5
static_assert(BlockTokens{kImage, kImage.origin(3), 3}(1) == 19);  // from slot 3 on
static_assert(BlockTokens{kImage, kImage.origin(3), 3}(3) == -1);  // slot 6 of 6

/// Rows of `width` numbers, `gap` numbers apart from each other; each number tells its place.
struct Rows {
  std::int64_t width, gap, count;
  Array<bfloat16> numbers;

  Rows(std::int64_t rows, std::int64_t columns, std::int64_t between, bool filled)
      : width(columns), gap(between), count(rows), numbers(rows * (columns + between) - between) {
    for (std::int64_t r = 0; filled && r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) at(r, c).bits = place(r, c);
    }
  }
  bfloat16& at(std::int64_t r, std::int64_t c) { return numbers[r * (width + gap) + c]; }
  std::int64_t stride() const { return 2 * (width + gap); }
  static std::uint16_t place(std::int64_t r, std::int64_t c) {
    return static_cast<std::uint16_t>(1 + r * 300 + c);
  }
};

/// Copies rows of tokens into a tile and writes them to other memory from there.
template <class Tile, int kThreads, class Tokens>
void expect_moved(const Tokens& tokens, std::int64_t count, std::int64_t gap) {
  Rows from(count, Tile::kColumns, gap, true), to(count, Tile::kColumns, gap, false);
  std::vector<std::uint32_t> seen(Tile::kRows * Tile::kColumns / 2);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    emulator::Device device(seed);
    device.track("from", from.numbers.data(), from.numbers.bytes(), emulator::Access::kRead);
    device.track("to", to.numbers.data(), to.numbers.bytes(), emulator::Access::kWrite);
    const auto report = in_block<kThreads, Tile::kBytes>(device, [&](std::uint32_t thread) {
      const Tile tile{ptx::shared_begin()};
      copy_rows<kThreads>(tile, from.numbers.raw(), from.stride(), tokens, thread);
      ptx::commit_copies();
      ptx::wait_copies<0>();
      ptx::meet_block();
      for (std::uint32_t i = thread; i < seen.size(); i += kThreads) {
        const std::uint32_t row = i / (Tile::kColumns / 2), column = i % (Tile::kColumns / 2) * 2;
        seen[i] = ptx::load_shared(tile.piece(row, column / 8) + column % 8 * 2);
      }
      write_rows<kThreads>(tile, to.numbers.raw(), to.stride(), tokens, thread);
    });
    std::int64_t moved = 0;
    for (std::int32_t r = 0; r < Tile::kRows; ++r) {
      const std::int32_t token = tokens(r);
      moved += token >= 0 ? 1 : 0;
      for (std::int32_t c = 0; c < Tile::kColumns; ++c) {
        const std::uint32_t word = seen[static_cast<std::size_t>(r * Tile::kColumns + c) / 2];
        const std::uint32_t bits = c % 2 == 0 ? word & 0xFFFF : word >> 16;
        ASSERT_EQ(bits, token < 0 ? 0u : Rows::place(token, c)) << "row " << r << " column " << c;
        if (token >= 0) {
          ASSERT_EQ(to.at(token, c).bits, Rows::place(token, c));
          to.at(token, c).bits = 0xFFFF;
        }
      }
    }
    for (std::int64_t i = 0; i < to.numbers.size(); ++i) ASSERT_EQ(to.numbers[i].bits, 0xFFFF);
    EXPECT_EQ(report.bytes_read("from"), static_cast<std::uint64_t>(moved * Tile::kColumns * 2));
    EXPECT_EQ(report.bytes_written("to"), static_cast<std::uint64_t>(moved * Tile::kColumns * 2));
    EXPECT_EQ(report.bank_conflicts, 0u);
  }
}

TEST(TokenRows, ConsecutiveRowsAreCopiedAndWritten) {
  expect_moved<SharedTile<64, 64>, 128>(ConsecutiveTokens{3, 67}, 70, 0);
  expect_moved<SharedTile<64, 72>, 128>(ConsecutiveTokens{3, 67}, 70, 0);
  expect_moved<SharedTile<32, 128>, 128>(ConsecutiveTokens{0, 32}, 32, 8);
  expect_moved<SharedTile<16, 256>, 64>(ConsecutiveTokens{1, 17}, 20, 24);
}

TEST(TokenRows, RowsBeyondTheLastAreZerosAndNotWritten) {
  expect_moved<SharedTile<64, 64>, 128>(ConsecutiveTokens{10, 59}, 59, 0);
  expect_moved<SharedTile<64, 72>, 128>(ConsecutiveTokens{58, 59}, 59, 8);
  expect_moved<SharedTile<16, 128>, 32>(ConsecutiveTokens{20, 20}, 20, 0);
}

TEST(TokenRows, ThreadsThatDoNotDivideTheCopiesTakeWhatIsThere) {
  expect_moved<SharedTile<16, 72>, 160>(ConsecutiveTokens{0, 16}, 16, 0);  // 144 pieces
  expect_moved<SharedTile<8, 64>, 96>(ConsecutiveTokens{0, 8}, 8, 0);      // 64 pieces
}

TEST(TokenRows, BlocksOfGridsAreGathered) {
  const TokenBlocks blocks(3, 7, 8, 2, 3, 5);
  for (std::int32_t b = 0; b < blocks.blocks(); ++b) {
    expect_moved<SharedTile<32, 64>, 64>(BlockTokens{blocks, blocks.origin(b), 0}, 168, 8);
    expect_moved<SharedTile<16, 72>, 64>(BlockTokens{blocks, blocks.origin(b), 16}, 168, 0);
  }
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
    store_sums<T>(sums, 0.5f, -0.25f, tile, row, piece, lane);
    ptx::meet_block();
    for (std::uint32_t i = lane; i < seen.size(); i += 32) {
      const std::uint32_t r = i / (4 * kTiles), column = i % (4 * kTiles) * 2;
      seen[i] = ptx::load_shared(tile.piece(row + r, piece + column / 8) + column % 8 * 2);
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

TEST(TokenRows, SumsAreStoredByRowsAndColumns) {
  expect_sums<half, SharedTile<16, 64>, 8>(0, 0);
  expect_sums<bfloat16, SharedTile<32, 64>, 3>(16, 5);
  expect_sums<half, SharedTile<24, 72>, 9>(8, 0);
  expect_sums<bfloat16, SharedTile<16, 256>, 16>(0, 16);
}

}  // namespace
}  // namespace mhla::cuda
