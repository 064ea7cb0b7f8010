#include "mhla/stage/turns.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "mhla/stage/streaming_product.hpp"

namespace mhla::test {
namespace {

using detail::Turns;

template <Index kParts>
void expect_turns(Index rows) {
  const Turns<kParts> turns{rows};
  Index next = 0;
  for (Index p = 0; p < kParts; ++p) {
    EXPECT_EQ(turns.part(p).begin, next);
    next = turns.part(p).end;
  }
  EXPECT_EQ(next, rows);
  std::vector<Index> held(kParts, 0);
  for (Index c = 0; c <= 40; ++c) {
    if (c > 0) held[static_cast<std::size_t>(turns.taking(c))] = c;
    for (Index p = 0; p < kParts; ++p) {
      EXPECT_EQ(turns.held(p, c), held[static_cast<std::size_t>(p)]) << p << " after " << c;
    }
  }
}

TEST(Turns, EveryRowIsInOnePartAndAPartTakesAllItLacks) {
  for (const Index rows : {0, 1, 2, 7, 16, 64, 96, 129}) {
    expect_turns<2>(rows);
    expect_turns<4>(rows);
    expect_turns<8>(rows);
  }
}

TEST(Turns, SharesGrowToAll) {
  for (const Index all : {0, 1, 15, 64, 4096, 5000}) {
    for (const Index length : {1, 2, 16, 63, 256}) {
      Index done = detail::done_after(0, length, all), most = 0;
      EXPECT_EQ(done, 0);
      for (Index t = 1; t <= length; ++t) {
        const Index now = detail::done_after(t, length, all);
        most = std::max(most, now - done);
        EXPECT_GE(now, done);
        done = now;
      }
      EXPECT_EQ(done, all);
      EXPECT_LE(most, (all + length - 1) / length + 16) << all << " in " << length;
    }
  }
}

/// Multiply-adds of the tokens of block i of a stream (stream_block.hpp), one after another.
std::vector<Index> work_of_block(Index d, Index e, Index w, Index i) {
  const Turns<detail::kFoldedKeys> running{d};
  const Turns<detail::kSummaryParts> summary{d};
  const auto taken = [&](const auto& turns, Index c) {
    const auto p = turns.taking(c);
    const auto part = turns.part(p);
    return (part.end - part.begin) * e * (c - turns.held(p, c - 1));
  };
  std::vector<Index> work;
  for (Index c = 1; c <= w; ++c) {
    Index sum = d * e + taken(running, c) + (c == 1 ? d * e : 0);
    sum += i * (detail::done_after(c, w, d * e) - detail::done_after(c - 1, w, d * e));
    if (c < w) sum += taken(summary, c);
    for (Index p = 0; c == w && p < detail::kSummaryParts; ++p) {
      const auto part = summary.part(p);
      sum += (part.end - part.begin) * e * (c - summary.held(p, c - 1));
    }
    work.push_back(sum);
  }
  return work;
}

TEST(Turns, NoTokenOfABlockTakesThreeTimesTheWorkOfTheMedian) {
  for (const Index d : {8, 16, 64, 100, 128, 256}) {
    for (const Index w : {2, 8, 16, 64, 256}) {
      if (d * 64 < w * detail::kRowAlignment) continue;
      for (const Index i : {1, 30, 1000}) {
        auto work = work_of_block(d, 64, w, i);
        std::sort(work.begin(), work.end());
        EXPECT_LT(work.back(), 3 * work[work.size() / 2]) << d << ", " << w << ", block " << i;
      }
    }
  }
}

}  // namespace
}  // namespace mhla::test
