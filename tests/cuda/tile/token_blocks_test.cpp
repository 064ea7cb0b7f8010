#include "mhla/cuda/tile/token_blocks.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "mhla/policy/grid_partition.hpp"
#include "support/random.hpp"

namespace mhla::cuda {
namespace {

TokenBlocks blocks_of(const GridShape& size, const GridShape& block) {
  const auto at = [](const GridShape& shape, int axis) {
    return static_cast<std::int32_t>(shape[axis]);
  };
  return {at(size, 0), at(size, 1), at(size, 2), at(block, 0), at(block, 1), at(block, 2)};
}

/// Tokens of the filled slots of a block, in the order of slots.
std::vector<Index> tokens_of(const TokenBlocks& blocks, std::int32_t block) {
  std::vector<Index> tokens;
  const BlockOrigin origin = blocks.origin(block);
  for (std::int32_t slot = 0; slot < blocks.slots(); ++slot) {
    const std::int32_t token = blocks.token(origin, slot);
    if (token >= 0) tokens.push_back(token);
  }
  return tokens;
}

/// The same of a partition of the stages.
template <Partition P>
std::vector<Index> tokens_of(const P& blocks, Index block) {
  std::vector<Index> tokens;
  for (Index r = 0; r < blocks.runs(block); ++r) {
    const Run run = blocks.run(block, r);
    for (Index i = 0; i < run.length; ++i) tokens.push_back(run.begin + i);
  }
  return tokens;
}

template <Partition P>
void expect_equal(const TokenBlocks& blocks, const P& expected) {
  ASSERT_EQ(blocks.tokens(), expected.tokens());
  ASSERT_EQ(blocks.blocks(), expected.blocks());
  for (std::int32_t b = 0; b < blocks.blocks(); ++b) {
    const std::vector<Index> tokens = tokens_of(blocks, b);
    ASSERT_EQ(tokens, tokens_of(expected, b)) << "block " << b;
    for (const Index token : tokens) {
      ASSERT_EQ(blocks.block_of(static_cast<std::int32_t>(token)), b) << "token " << token;
    }
  }
}

/// Every slot by definition, those beyond the block's too: slot (f, y, x) of block (i, j, k), both
/// in raster order, is the cell at their sum. Every token is in exactly one.
void expect_definition(const GridShape& size, const GridShape& block) {
  const TokenBlocks blocks = blocks_of(size, block);
  const auto count = [&](int axis) { return (size[axis] + block[axis] - 1) / block[axis]; };
  const Index slots = block[0] * block[1] * block[2];
  ASSERT_EQ(blocks.slots(), slots);
  std::vector<int> found(static_cast<std::size_t>(blocks.tokens()), 0);
  for (Index b = 0; b < blocks.blocks(); ++b) {
    const BlockOrigin origin = blocks.origin(static_cast<std::int32_t>(b));
    const Index begins[3] = {b / (count(1) * count(2)) * block[0],
                             b / count(2) % count(1) * block[1], b % count(2) * block[2]};
    ASSERT_EQ(origin.frame, begins[0]);
    ASSERT_EQ(origin.row, begins[1]);
    ASSERT_EQ(origin.column, begins[2]);
    for (Index slot = 0; slot < slots + 300; ++slot) {
      const Index f = begins[0] + slot / (block[1] * block[2]);
      const Index y = begins[1] + slot / block[2] % block[1];
      const Index x = begins[2] + slot % block[2];
      const bool filled = slot < slots && f < size[0] && y < size[1] && x < size[2];
      const Index token = filled ? (f * size[1] + y) * size[2] + x : -1;
      ASSERT_EQ(blocks.token(origin, static_cast<std::int32_t>(slot)), token)
          << "block " << b << ", slot " << slot;
      if (filled) ++found[static_cast<std::size_t>(token)];
    }
  }
  for (const int times : found) ASSERT_EQ(times, 1);
}

constexpr bool inverts(const TokenBlocks& blocks) {
  std::int32_t filled = 0;
  for (std::int32_t b = 0; b < blocks.blocks(); ++b) {
    const BlockOrigin origin = blocks.origin(b);
    for (std::int32_t slot = 0; slot < blocks.slots(); ++slot) {
      const std::int32_t token = blocks.token(origin, slot);
      if (token < -1 || token >= blocks.tokens()) return false;
      if (token >= 0 && blocks.block_of(token) != b) return false;
      filled += token >= 0 ? 1 : 0;
    }
  }
  return filled == blocks.tokens();
}
static_assert(inverts(TokenBlocks()));
static_assert(inverts(TokenBlocks(1, 1, 100, 1, 1, 16)));  // 6 whole blocks and one of 4
static_assert(inverts(TokenBlocks(1, 7, 9, 1, 3, 4)));
static_assert(inverts(TokenBlocks(3, 5, 7, 2, 2, 3)));
static_assert(inverts(TokenBlocks(2, 3, 4, 5, 6, 7)));  // one block, larger than the grid

TEST(TokenBlocks, SequencesAreContiguous) {
  for (const std::int32_t length : {1, 16, 49, 64, 210, 256, 1000}) {
    for (const std::int32_t tokens : {1, 2, length, length + 1, 3 * length, 4 * length - 1}) {
      SCOPED_TRACE(std::to_string(tokens) + " tokens in blocks of " + std::to_string(length));
      expect_equal(TokenBlocks(1, 1, tokens, 1, 1, length), Contiguous(tokens, length));
    }
  }
}

TEST(TokenBlocks, ImagesAndVideosAreGrids) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const GridShape size{rng.integer(1, 5), rng.integer(1, 8), rng.integer(1, 9)};
    const GridShape block{rng.integer(1, 6), rng.integer(1, 9), rng.integer(1, 10)};
    expect_equal(blocks_of(size, block), mhla::Grid(size, block));
    expect_definition(size, block);
  }
}

TEST(TokenBlocks, SlotsAreWhereTheyAreInWholeBlocks) {
  expect_definition({16, 16}, {4, 4});
  expect_definition({14, 14}, {7, 7});
  expect_definition({21, 30, 50}, {7, 6, 5});
  expect_definition({20, 29, 48}, {7, 6, 5});
  expect_definition(GridShape(1001), GridShape(64));
}

TEST(TokenBlocks, HoldAsManyTokensAsFit) {
  constexpr std::int32_t kTokens = std::numeric_limits<std::int32_t>::max();
  for (const std::int32_t length : {64, 210, 1000, 1 << 20}) {
    const TokenBlocks blocks(1, 1, kTokens, 1, 1, length);
    const std::int32_t last = blocks.blocks() - 1;
    ASSERT_EQ(last, (kTokens - 1) / length);
    const BlockOrigin origin = blocks.origin(last);
    ASSERT_EQ(origin.column, last * length);
    for (std::int32_t slot = 0; slot < length; ++slot) {
      const std::int64_t token = std::int64_t{last} * length + slot;
      ASSERT_EQ(blocks.token(origin, slot), token < kTokens ? token : -1);
      if (token >= kTokens) continue;
      ASSERT_EQ(blocks.block_of(static_cast<std::int32_t>(token)), last);
    }
  }
}

TEST(TokenBlocks, KeepTheirSizes) {
  const TokenBlocks blocks(20, 29, 48, 7, 6, 5);
  EXPECT_EQ(blocks.frames(), 20);
  EXPECT_EQ(blocks.rows(), 29);
  EXPECT_EQ(blocks.columns(), 48);
  EXPECT_EQ(blocks.block_frames(), 7);
  EXPECT_EQ(blocks.block_rows(), 6);
  EXPECT_EQ(blocks.block_columns(), 5);
  EXPECT_EQ(blocks.tokens(), 20 * 29 * 48);
  EXPECT_EQ(blocks.slots(), 210);
  EXPECT_EQ(blocks.blocks(), 3 * 5 * 10);
}

}  // namespace
}  // namespace mhla::cuda
