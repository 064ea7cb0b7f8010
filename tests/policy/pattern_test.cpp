#include "mhla/policy/pattern.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "support/bands.hpp"
#include "support/message_of.hpp"

namespace mhla {
namespace {

TEST(Pattern, HoldsThePlacesNearTheDiagonal) {
  test::for_bands([](test::Random&, Index rows, Index cols, Index lower, Index upper) {
    const Pattern band(rows, cols, lower, upper);
    Index widest = 0;
    for (Index i = 0; i < rows; ++i) {
      ASSERT_LE(band.first(i), band.last(i));
      widest = std::max(widest, band.last(i) - band.first(i));
      for (Index b = 0; b < cols; ++b) {
        ASSERT_LE(band.first_row(b), band.last_row(b));
        const bool held = b >= i - lower && b <= i + upper;
        ASSERT_EQ(band.holds(i, b), held) << i << ", " << b;
        ASSERT_EQ(b >= band.first(i) && b < band.last(i), held) << i << ", " << b;
        ASSERT_EQ(i >= band.first_row(b) && i < band.last_row(b), held) << i << ", " << b;
      }
      ASSERT_FALSE(band.holds(i, -1) || band.holds(i, cols));
    }
    EXPECT_FALSE(band.holds(-1, 0) || band.holds(rows, 0));
    EXPECT_LE(widest, band.width());
    EXPECT_LE(band.width(), std::min(cols, lower + upper + 1));
    EXPECT_EQ(band.size(), rows * band.width());
  });
}

TEST(Pattern, OfStepsHoldsNoBlockOfALaterStepAtTheSamePlaces) {
  test::for_bands([](test::Random&, Index rows, Index cols, Index lower, Index upper) {
    const Pattern band(rows, cols, lower, upper);
    for (const Index step : {1, 2, 3, 20}) {
      const Pattern part = band.block_causal(step);
      EXPECT_EQ(part.size(), band.size());
      EXPECT_EQ(part, band.block_causal(step));
      EXPECT_NE(part, band);
      for (Index i = 0; i < rows; ++i) {
        ASSERT_LE(part.first(i), part.last(i));
        for (Index b = 0; b < cols; ++b) {
          ASSERT_LE(part.first_row(b), part.last_row(b));
          const bool held = band.holds(i, b) && b / step <= i / step;
          ASSERT_EQ(part.place(i, b), held ? band.place(i, b) : -1) << i << ", " << b;
          ASSERT_EQ(b >= part.first(i) && b < part.last(i), held) << i << ", " << b;
          ASSERT_EQ(i >= part.first_row(b) && i < part.last_row(b), held) << i << ", " << b;
        }
      }
    }
  });
}

TEST(Pattern, EqualBandsHoldTheSamePlacesOfOneShape) {
  const Pattern band(5, 6, 2, 1);
  EXPECT_EQ(band, Pattern(5, 6, 2, 1));
  for (const Pattern& other : {Pattern(4, 6, 2, 1), Pattern(5, 7, 2, 1), Pattern(5, 6, 1, 2),
                               Pattern(5, 6, 2, 2), Pattern(5, 6, 1, 1), Pattern()}) {
    EXPECT_NE(band, other);
  }
  // Bands that go beyond the matrix on both sides are the dense matrix.
  constexpr Index kFar = std::numeric_limits<Index>::max();
  EXPECT_EQ(Pattern(5, 6, 20, 30), Pattern(5, 6));
  EXPECT_EQ(Pattern(5, 6, kFar, kFar), Pattern(5, 6));
  EXPECT_EQ(Pattern(5, 6, 4, 5), Pattern(5, 6));
  EXPECT_EQ(Pattern(4, 4, 3, 0), Pattern(4, 4, 4, 0));
  EXPECT_EQ(Pattern(2, 4, 9, 0).width(), 2);
}

using Lists = std::vector<std::vector<Index>>;

/// Lists of rows, some of them empty.
Lists random_lists(test::Random& rng, Index rows, Index cols) {
  Lists lists(static_cast<std::size_t>(rows));
  for (auto& list : lists) {
    for (Index b = 0; b < cols; ++b) {
      if (rng.chance(0.4)) list.push_back(b);
    }
  }
  return lists;
}

TEST(PatternOfLists, HoldsTheListsByRowsAndByColumns) {
  test::Random rng(1);
  for (int repeat = 0; repeat < 100; ++repeat) {
    const Index rows = rng.integer(1, 9), cols = rng.integer(1, 9);
    const Lists lists = random_lists(rng, rows, cols);
    const Pattern pattern(cols, lists);
    ASSERT_TRUE(pattern.sparse());
    ASSERT_EQ(pattern.rows(), rows);
    ASSERT_EQ(pattern.cols(), cols);
    Index place = 0;
    Lists columns(static_cast<std::size_t>(cols));
    for (Index i = 0; i < rows; ++i) {
      const std::vector<Index>& list = lists[static_cast<std::size_t>(i)];
      std::vector<Index> visited;
      pattern.for_each_in_row(i, [&](Index b, Index at) {
        visited.push_back(b);
        columns[static_cast<std::size_t>(b)].push_back(at);
        ASSERT_EQ(at, place++);
        ASSERT_EQ(pattern.place(i, b), at);
      });
      ASSERT_EQ(visited, list);
      for (Index b = -1; b <= cols; ++b) {
        ASSERT_EQ(pattern.holds(i, b), std::ranges::count(list, b) == 1) << i << ", " << b;
      }
    }
    ASSERT_EQ(pattern.size(), place);
    for (Index b = 0; b < cols; ++b) {
      const detail::PatternList readers = pattern.column(b);
      std::vector<Index> places;
      for (Index n = 0; n < readers.count; ++n) {
        places.push_back(readers.place(n));
        ASSERT_EQ(pattern.place(readers.blocks[n], b), readers.place(n));
      }
      ASSERT_EQ(places, columns[static_cast<std::size_t>(b)]);
      const Index begin = rng.integer(0, rows), end = rng.integer(0, rows);
      Index inside = 0;
      for (Index i = begin; i < end; ++i) inside += pattern.holds(i, b);
      ASSERT_EQ(readers.between(begin, end).count, inside);
    }
  }
}

TEST(PatternOfLists, EqualOnesHoldTheSamePlaces) {
  const Lists lists{{0, 2}, {}, {1}};
  const Pattern pattern(3, lists);
  EXPECT_EQ(pattern, Pattern(3, lists));
  EXPECT_EQ(pattern, Pattern(pattern));
  for (const Pattern& other : {Pattern(4, lists), Pattern(3, Lists{{0, 2}, {1}, {}}),
                               Pattern(3, Lists{{0, 1}, {}, {1}}), Pattern(3, 3)}) {
    EXPECT_NE(pattern, other);
  }
}

TEST(PatternOfLists, RefusesColumnsThatDoNotAscendOrAreNone) {
  const auto text = [](const Lists& lists) {
    return test::message_of<option_error>([&] { Pattern(3, lists); });
  };
  const std::string expected = ", expected ascending columns below 3";
  EXPECT_EQ(text({{0}, {1, 1}}),
            "mhla::Pattern: lists have column 1 as number 1 of row 1" + expected);
  EXPECT_EQ(text({{-1}}), "mhla::Pattern: lists have column -1 as number 0 of row 0" + expected);
  EXPECT_EQ(text({{0, 3}}), "mhla::Pattern: lists have column 3 as number 1 of row 0" + expected);
  EXPECT_THROW(Pattern(3, Lists{}), option_error);
}

}  // namespace
}  // namespace mhla
