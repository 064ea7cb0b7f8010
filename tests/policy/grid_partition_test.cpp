#include "mhla/policy/grid_partition.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "contract/partition.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"
#include "support/seeds.hpp"

namespace mhla {
namespace {

using test::tokens_of;

/// Tokens of each block by definition: cells (f, y, x) in raster order, each appended to its block.
std::vector<std::vector<Index>> expected_blocks(GridShape size, GridShape block) {
  const auto count = [&](int axis) { return (size[axis] + block[axis] - 1) / block[axis]; };
  std::vector<std::vector<Index>> blocks(static_cast<std::size_t>(count(0) * count(1) * count(2)));
  Index token = 0;
  for (Index f = 0; f < size[0]; ++f) {
    for (Index y = 0; y < size[1]; ++y) {
      for (Index x = 0; x < size[2]; ++x) {
        const Index b = ((f / block[0]) * count(1) + y / block[1]) * count(2) + x / block[2];
        blocks[static_cast<std::size_t>(b)].push_back(token++);
      }
    }
  }
  return blocks;
}

void expect_definition(GridShape size, GridShape block) {
  const Grid grid(size, block);
  const auto expected = expected_blocks(size, block);
  test::expect_partition_laws(grid);
  ASSERT_EQ(grid.tokens(), size[0] * size[1] * size[2]);
  ASSERT_EQ(grid.blocks(), std::ssize(expected));
  for (int axis = 0; axis < 3; ++axis) {
    ASSERT_EQ(grid.block_grid()[axis], (size[axis] + block[axis] - 1) / block[axis]);
  }
  for (Index b = 0; b < grid.blocks(); ++b) {
    ASSERT_EQ(tokens_of(grid, b), expected[static_cast<std::size_t>(b)]) << "block " << b;
  }
}

TEST(GridShape, NamesTheLastAxesFirst) {
  EXPECT_EQ(GridShape(7), GridShape(1, 1, 7));
  EXPECT_EQ(GridShape(5, 7), GridShape(1, 5, 7));
  EXPECT_NE(GridShape(5, 7), GridShape(7, 5));
  EXPECT_EQ(GridShape(3, 5, 7)[0], 3);
}

TEST(Grid, EveryTokenIsOnceInTheBlockOfItsCell) {
  for (const std::uint64_t seed : test::seeds(500)) {
    test::Random rng(seed);
    const GridShape size{rng.integer(1, 5), rng.integer(1, 8), rng.integer(1, 9)};
    const GridShape block{rng.integer(1, 6), rng.integer(1, 9), rng.integer(1, 10)};
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_definition(size, block);
  }
  EXPECT_EQ(Grid(11, 3).blocks(), Contiguous(11, 3).blocks());
}

TEST(Grid, HugeBlocksDoNotOverflow) {
  constexpr Index kMax = std::numeric_limits<Index>::max();
  const Grid grid({4, 6}, {kMax, 1});
  EXPECT_EQ(grid.blocks(), 6);
  EXPECT_EQ(grid.block_size(5), 4);
}

TEST(Grid, RejectsSizesBelowOneAndProductsThatDoNotFit) {
  EXPECT_EQ(test::message_of<option_error>([] {
              Grid({4, 0}, {2, 2});
            }),
            "mhla::Grid: tokens is [1, 4, 0], expected sizes >= 1");
  EXPECT_EQ(test::message_of<option_error>([] {
              Grid({4, 4}, {0, 2});
            }),
            "mhla::Grid: block is [1, 0, 2], expected sizes >= 1");
  EXPECT_THROW(Grid({4, -1}, {2, 2}), option_error);
  const Index large = Index{1} << 32;
  EXPECT_EQ(test::message_of<shape_error>([&] {
              Grid({large, large}, {2, 2});
            }),
            "mhla::Grid: tokens has shape [1, 4294967296, 4294967296], expected a product that "
            "fits std::ptrdiff_t");
}

/// Checks the documented choice by trying every divisor.
void expect_best_grid(GridShape tokens, Index most = 1000) {
  const SuggestedGrid got = suggest_grid(tokens, most);
  const Index n = tokens[0] * tokens[1] * tokens[2];
  Index blocks = 0, sides = 0;
  for (Index f = 1; f <= tokens[0]; ++f) {
    for (Index y = 1; y <= tokens[1]; ++y) {
      for (Index x = 1; x <= tokens[2]; ++x) {
        const bool divides = tokens[0] % f == 0 && tokens[1] % y == 0 && tokens[2] % x == 0;
        const Index m = f * y * x;
        if (!divides || m * m > n || m > most || m < blocks) continue;
        const Index sum = tokens[0] / f + tokens[1] / y + tokens[2] / x;
        sides = m > blocks ? sum : std::min(sides, sum);
        blocks = m;
      }
    }
  }
  EXPECT_EQ(got.blocks[0] * got.blocks[1] * got.blocks[2], blocks);
  EXPECT_EQ(got.block[0] + got.block[1] + got.block[2], sides);
  for (int axis = 0; axis < 3; ++axis) {
    EXPECT_EQ(got.block[axis] * got.blocks[axis], tokens[axis]) << "axis " << axis;
  }
  EXPECT_EQ(Grid(tokens, got.block).block_grid(), got.blocks);
}

TEST(SuggestGrid, IsTheLargestNumberOfTheMostCompactEqualBlocks) {
  for (const std::uint64_t seed : test::seeds(300)) {
    test::Random rng(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const GridShape tokens(rng.integer(1, 12), rng.integer(1, 30), rng.integer(1, 30));
    expect_best_grid(tokens);
    expect_best_grid(tokens, rng.integer(1, 20));
  }
}

TEST(SuggestGrid, KnowsTheShapesOfThePaper) {
  EXPECT_EQ(suggest_grid({16, 16}).blocks, GridShape(4, 4));
  EXPECT_EQ(suggest_grid({21, 30, 50}).blocks, GridShape(7, 5, 5));
  expect_best_grid(13);  // 13 blocks of one token would be too many
  EXPECT_EQ(suggest_grid({32, 32}).blocks[1] * suggest_grid({32, 32}).blocks[2], 32);
}

TEST(SuggestGrid, RejectsSizesAndNumbersBelowOne) {
  EXPECT_EQ(test::message_of<option_error>([] {
              suggest_grid({0, 4});
            }),
            "mhla::suggest_grid: tokens is [1, 0, 4], expected sizes >= 1");
  EXPECT_EQ(test::message_of<option_error>([] {
              suggest_grid({4, 4}, 0);
            }),
            "mhla::suggest_grid: most is 0, expected at least 1");
}

}  // namespace
}  // namespace mhla
