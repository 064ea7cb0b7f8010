#include "mhla/stage/row_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "mhla/attention/earlier_blocks.hpp"

namespace mhla::test {
namespace {

using detail::kTurns;
using detail::RowSchedule;

void expect_turns(Index rows) {
  const RowSchedule turns{rows};
  Index next = 0;
  for (Index p = 0; p < kTurns; ++p) {
    EXPECT_EQ(turns.part(p).begin, next);
    next = turns.part(p).end;
  }
  EXPECT_EQ(next, rows);
  std::vector<Index> held(kTurns, 0);
  for (Index c = 0; c <= 40; ++c) {
    if (c > 0) held[static_cast<std::size_t>(turns.taking(c))] = c;
    for (Index p = 0; p < kTurns; ++p) {
      EXPECT_EQ(turns.held(p, c), held[static_cast<std::size_t>(p)]) << p << " after " << c;
    }
  }
}

TEST(RowSchedule, EveryRowIsInOnePartAndAPartTakesAllItLacks) {
  for (const Index rows : {0, 1, 2, 7, 16, 64, 96, 129}) expect_turns(rows);
}

TEST(RowSchedule, SharesGrowToAll) {
  for (const Index all : {0, 1, 15, 64, 4096, 5000}) {
    for (const Index length : {1, 2, 16, 63, 256}) {
      for (const Index unit : {1, 16, 64}) {
        Index done = 0;
        for (Index t = 0; t < length; ++t) {
          const detail::ColumnSpan due = detail::due(t, t + 1, length, all, unit);
          EXPECT_EQ(due.begin, done);
          EXPECT_GE(due.end, done);
          EXPECT_LE(due.end - done, (all + length - 1) / length + unit) << all << " in " << length;
          EXPECT_TRUE(due.end % unit == 0 || due.end == all) << due.end << " by " << unit;
          done = due.end;
        }
        EXPECT_EQ(done, all);
      }
    }
  }
}

/// Multiply-adds per token of the blocks [first, first + g) of a stream (stream_block.hpp), in
/// order.
std::vector<Index> work_of_group(Index d, Index e, Index w, Index first, Index g) {
  const RowSchedule turns{d};
  const auto rows = [&](Index p) { return turns.part(p).end - turns.part(p).begin; };
  const auto share = [](Index token, Index length, Index all, Index unit) {
    const detail::ColumnSpan due = detail::due(token, token + 1, length, all, unit);
    return due.end - due.begin;
  };
  const Index pieces = (d * e + detail::kPiece - 1) / detail::kPiece;
  std::vector<Index> work;
  for (Index t = 0; t < g * w; ++t) {
    const Index c = t % w + 1, since = t / w + (t / w + 1 < g ? g : 0);
    const Index turn = turns.taking(c);
    Index sum = d * e + (c == 1 ? d * e : 0);
    // Keys that some part lacks, and the rows of them that these parts need.
    sum += std::min(c, kTurns) * e;
    for (Index p = 0; p < kTurns; ++p) sum += rows(p) * (c - turns.held(p, c - 1));
    // The part whose turn it is adds keys to S, and the growth of S to R.
    sum += rows(turn) * e * (c - turns.held(turn, c - 1) + 1);
    sum += g * detail::kPiece * share(t, g * w, pieces * first, 1);
    sum += since * share(c - 1, w, d * e, detail::kPiece);
    for (Index p = 0; c == w && p < kTurns; ++p) sum += rows(p) * e * (c - turns.held(p, c));
    work.push_back(sum);
  }
  return work;
}

TEST(RowSchedule, NoTokenOfAStreamTakesThreeTimesTheWorkOfTheMedian) {
  for (const Index d : {8, 16, 64, 100, 128, 256}) {
    for (const Index w : {2, 8, 16, 64, 256}) {
      if (d * 64 < w * detail::kPiece) continue;
      for (const Index blocks : {4, 32, 1000}) {
        const Index g = detail::prepared_together(blocks);
        for (const Index first : {g, blocks / 2 / g * g, blocks / g * g - g}) {
          auto work = work_of_group(d, 64, w, first, g);
          std::sort(work.begin(), work.end());
          EXPECT_LT(work.back(), 3 * work[work.size() / 2])
              << d << ", " << w << ", block " << first << " of " << blocks;
        }
      }
    }
  }
}

}  // namespace
}  // namespace mhla::test
