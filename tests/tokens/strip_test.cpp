#include "mhla/tokens/strip.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "mhla/policy/grid_partition.hpp"
#include "support/random.hpp"
#include "support/seeds.hpp"

namespace mhla {
namespace {

using detail::kStripTokens;

struct Expected {
  Index block;
  std::vector<Index> tokens, places;
};

/// The strips of block b, from a list of all its kept tokens.
template <Partition P>
std::vector<Expected> strips_of(const P& blocks, Index b, Mask mask) {
  std::vector<Expected> strips;
  Index slot = 0;
  for (Index r = 0; r < blocks.runs(b); ++r) {
    const Run run = blocks.run(b, r);
    for (Index t = run.begin; t < run.begin + run.length; ++t, ++slot) {
      if (!mask[t]) continue;
      if (strips.empty() || std::ssize(strips.back().tokens) == kStripTokens) {
        strips.push_back({b, {}, {}});
      }
      strips.back().tokens.push_back(t);
      strips.back().places.push_back(slot);
    }
  }
  return strips;
}

void expect_equal(const Index* got, const std::vector<Index>& expected) {
  EXPECT_EQ(std::vector<Index>(got, got + expected.size()), expected);
}

void expect_equal(const detail::Strip& strip, const Expected& expected) {
  ASSERT_EQ(strip.count, std::ssize(expected.tokens));
  expect_equal(strip.tokens, expected.tokens);
  expect_equal(strip.places, expected.places);
  EXPECT_TRUE(strip.count == 0 || strip.block == expected.block);
}

/// Walks through every block, and compares its strips and the strips ahead.
template <Partition P>
void expect_strips(const P& blocks, Mask mask) {
  for (Index b = 0; b < blocks.blocks(); ++b) {
    const std::vector<Expected> strips = strips_of(blocks, b, mask);
    std::vector<Expected> ahead = strips;  // and the next block's first strip, or none
    if (b + 1 < blocks.blocks()) {
      const std::vector<Expected> next = strips_of(blocks, b + 1, mask);
      if (!next.empty()) ahead.push_back(next.front());
    }
    ahead.push_back({});

    detail::StripCursor strip(blocks, b, mask);
    for (std::size_t s = 0; s < strips.size(); ++s) {
      EXPECT_TRUE(strip.more());
      expect_equal(strip.ahead(), ahead[s]);
      ASSERT_EQ(strip.next(), std::ssize(strips[s].tokens)) << "block " << b;
      EXPECT_EQ(strip.count(), std::ssize(strips[s].tokens));
      expect_equal(strip.tokens(), strips[s].tokens);
      expect_equal(strip.places(), strips[s].places);
    }
    for (int again = 0; again < 3; ++again) {  // at the end, and past it
      EXPECT_FALSE(strip.more());
      expect_equal(strip.ahead(), ahead[strips.size()]);
      EXPECT_EQ(strip.next(), 0);
      EXPECT_EQ(strip.count(), 0);
    }
  }
}

TEST(StripCursor, VisitsTheKeptTokensOfEveryBlockInOrder) {
  for (const std::uint64_t seed : test::seeds(200)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const Grid grid{{rng.integer(1, 4), rng.integer(1, 12), rng.integer(1, 12)},
                    {rng.integer(1, 4), rng.integer(1, 12), rng.integer(1, 12)}};
    const Contiguous sequence(grid.tokens(), rng.integer(1, 200));
    for (const double probability : {0.0, 0.1, 0.7, 1.0}) {
      const test::RandomMask random(rng, grid.tokens(), probability);
      expect_strips(grid, random.mask);
      expect_strips(sequence, random.mask);
    }
    expect_strips(grid, {});
    expect_strips(sequence, {});
  }
}

TEST(StripCursor, SlotsOfARangeAreReadUpToAWholeStrip) {
  for (const std::uint64_t seed : test::seeds(200)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const Contiguous blocks(400, rng.integer(1, 250));
    const test::RandomMask random(rng, 400, rng.chance(0.5) ? 0.9 : 0.2);
    const Mask mask = rng.chance(0.3) ? Mask() : random.mask;
    const Index b = rng.integer(0, blocks.blocks() - 1), begin = blocks.run(b, 0).begin;
    const Index to = rng.integer(0, blocks.block_size(b)), from = rng.integer(0, to);
    Expected expected{b, {}, {}};
    Index end = from;
    for (; end < to && std::ssize(expected.tokens) < kStripTokens; ++end) {
      if (!mask[begin + end]) continue;
      expected.tokens.push_back(begin + end);
      expected.places.push_back(end);
    }
    detail::Strip strip;
    EXPECT_EQ(detail::read_slots(blocks, b, mask, from, to, strip), end);
    expect_equal(strip, expected);
  }
}

TEST(Strip, TokensAreSelectedInPlace) {
  detail::Strip strip;
  detail::read_slots(Contiguous(10, 5), 1, {}, 0, 5, strip);
  detail::select_tokens(
      strip, [](Index t, Index place) { return t != 5 && place != 3; }, strip);
  expect_equal(strip, {1, {6, 7, 9}, {1, 2, 4}});
}

TEST(StripCursor, WholeStripsAreFollowedByAnEmptyOne) {
  for (const Index size :
       {Index{0}, kStripTokens - 1, kStripTokens, kStripTokens + 1, 2 * kStripTokens}) {
    const BlockSizes blocks({3, size, 0, 2, size, 0, 0});
    expect_strips(blocks, {});
    test::Random rng(1);
    expect_strips(blocks, test::RandomMask(rng, blocks.tokens(), 1).mask);
    detail::StripCursor strip(blocks, 1, {});
    EXPECT_EQ(strip.next(), std::min(size, kStripTokens));
  }
}

}  // namespace
}  // namespace mhla
