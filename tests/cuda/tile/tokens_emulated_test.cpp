#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

namespace token_rows_tests {

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

/// Rows of `width` numbers with gaps of `gap` numbers. Every number encodes its place.
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

/// Copies rows of tokens into a tile, and from the tile to other memory.
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
      ptx::cp_async_commit_group();
      ptx::cp_async_wait_group<0>();
      ptx::bar_sync();
      for (std::uint32_t i = thread; i < seen.size(); i += kThreads) {
        const std::uint32_t row = i / (Tile::kColumns / 2), column = i % (Tile::kColumns / 2) * 2;
        seen[i] = ptx::ld_shared(tile.piece(row, column / 8) + column % 8 * 2);
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

}  // namespace token_rows_tests

namespace token_list_tests {

/// Every thread reads every entry from `first` on.
template <int kThreads, int kRows, class Tokens>
void expect_listed(const Tokens& tokens, std::int32_t first) {
  std::vector<std::int32_t> read(static_cast<std::size_t>(kThreads * (kRows - first)));
  emulator::Device device(3);
  cuda_test::in_block<kThreads>(device, [&](std::uint32_t thread) {
    const std::uint32_t begin = ptx::shared_begin() + 64;
    list_tokens<kThreads, kRows>(begin, tokens, thread);
    ptx::bar_sync();
    const ListedTokens listed{begin, first};
    for (std::int32_t row = 0; row < kRows - first; ++row) {
      read[static_cast<std::size_t>(row * kThreads) + thread] = listed(row);
    }
  });
  for (std::size_t i = 0; i < read.size(); ++i) {
    ASSERT_EQ(read[i], tokens(first + static_cast<std::int32_t>(i / kThreads))) << i;
  }
}

TEST(TokenList, HoldsTheTokenOfEveryRow) {
  const TokenBlocks blocks(3, 7, 8, 2, 3, 5);
  for (std::int32_t b = 0; b < blocks.blocks(); ++b) {
    expect_listed<64, 32>(BlockTokens{blocks, blocks.origin(b), 0}, 0);
    expect_listed<32, 48>(BlockTokens{blocks, blocks.origin(b), 3}, 16);
  }
  expect_listed<128, 210>(ConsecutiveTokens{2000000000, 2000000100}, 0);
}

}  // namespace token_list_tests

namespace copied_features_tests {

/// Rows are copied and mapped, each piece by the thread that copied it; all read them after one
/// barrier. Rows without a token are phi(0).
template <class T, class Tile, int kThreads>
void expect_features(const FeatureMap& map) {
  test::Random rng(5);
  constexpr std::int32_t kTokens = Tile::kRows - 3;
  cuda_test::Array<T> numbers(std::int64_t{kTokens} * Tile::kColumns);
  for (std::int64_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = cuda_test::from_double<T>(2 * rng.normal());
  }
  std::vector<std::uint32_t> seen(Tile::kRows * Tile::kColumns / 2);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    emulator::Device device(seed);
    device.track("rows", numbers.data(), numbers.bytes(), emulator::Access::kRead);
    const auto report = cuda_test::in_block<kThreads>(device, [&](std::uint32_t thread) {
      const Tile tile{ptx::shared_begin()};
      copy_rows<kThreads>(tile, numbers.raw(), Tile::kColumns * 2, ConsecutiveTokens{0, kTokens},
                          thread);
      ptx::cp_async_commit_group();
      ptx::cp_async_wait_group<0>();
      apply_to_copied<T, kThreads>(map, tile, thread);
      ptx::bar_sync();
      for (std::uint32_t i = thread; i < seen.size(); i += kThreads) {
        const std::uint32_t row = i / (Tile::kColumns / 2), column = i % (Tile::kColumns / 2) * 2;
        seen[i] = ptx::ld_shared(tile.piece(row, column / 8) + column % 8 * 2);
      }
    });
    EXPECT_EQ(report.bank_conflicts, 0u);
    for (std::uint32_t i = 0; i < seen.size(); ++i) {
      const auto bits = [&](std::int64_t at) {
        return at < numbers.size() ? std::uint32_t{numbers[at].bits} : 0u;
      };
      std::uint32_t pair[1] = {bits(2 * i) | bits(2 * i + 1) << 16};
      apply<T>(map, pair);
      ASSERT_EQ(seen[i], pair[0]) << i;
    }
  }
}

TEST(CopiedFeatures, AreThoseOfEveryRow) {
  expect_features<bfloat16, SharedTile<32, 64>, 128>(FeatureMap::relu(0.5f));
  expect_features<half, SharedTile<32, 72>, 96>(FeatureMap::elu_plus_one());
  expect_features<bfloat16, SharedTile<16, 72>, 160>(FeatureMap::relu());
  expect_features<half, SharedTile<16, 128>, 64>(FeatureMap::identity());
}

}  // namespace copied_features_tests

}  // namespace
}  // namespace mhla::cuda
