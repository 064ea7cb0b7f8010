// Prefetches have no visible effect, so these tests record them: every prefetch of the library in
// this file calls test::prefetched. The target has another name here, so its functions differ from
// those of other linked files.

#include <Eigen/Core>

#define MHLA_EMULATE_MATRIX_UNIT
#define __builtin_prefetch(address, ...) ::mhla::test::prefetched(address)

namespace mhla::test {
void prefetched(const void* line);
}  // namespace mhla::test

#include "mhla/kernel/panels.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/stage/open_block.hpp"
#include "mhla/tokens/gather.hpp"

#undef __builtin_prefetch

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "support/random.hpp"
#include "support/seeds.hpp"

namespace mhla {
namespace test {

std::vector<const void*> lines;
void prefetched(const void* line) { lines.push_back(line); }

}  // namespace test
namespace {

using detail::Prefetch;
using test::lines;

/// Appends the lines of rows order[0..count), row by row, in pieces. The last piece of a row begins
/// earlier if it would end after the row, unless the row is shorter than a piece.
template <class T>
void append_lines(std::vector<const void*>& all, const std::vector<Index>& order,
                  const MatrixView<const T>& x) {
  const auto line_of = [](const void* p) {
    return static_cast<Index>(reinterpret_cast<std::uintptr_t>(p)) / 64;
  };
  if (x.cols == 0) return;
  for (const Index r : order) {
    const Index first = line_of(x.row(r)), last = line_of(x.row(r) + x.cols - 1);
    for (Index piece = first; piece <= last; piece += Prefetch::kPiece) {
      const Index begin = std::max(first, std::min(piece, last + 1 - Prefetch::kPiece));
      for (Index line = begin; line < begin + Prefetch::kPiece; ++line) {
        all.push_back(reinterpret_cast<const void*>(line * 64));
      }
    }
  }
}

/// All lines of a list for `tiles` tiles of `steps` steps, which get about equal shares. Lines of
/// the last tile are left to the end.
std::vector<const void*> fetched(Index tiles, Index steps, Prefetch& prefetch) {
  lines.clear();
  std::vector<Index> shares;
  for (Index tile = 1; tile < tiles; ++tile) {
    const auto before = std::ssize(lines);
    const Prefetch::Pieces share = prefetch.share(steps);
    EXPECT_LE(share.count, steps);
    // Pieces without a step are fetched at once, the others in the steps of the tile.
    const auto at_once = std::ssize(lines);
    for (Index k = 0; k < share.count; ++k) share.fetch(k);
    std::rotate(lines.begin() + before, lines.begin() + at_once, lines.end());
    shares.push_back(std::ssize(lines) - before);
  }
  prefetch.finish();
  const auto all = lines;
  prefetch.finish();
  EXPECT_EQ(prefetch.share(steps).count, 0);
  EXPECT_EQ(lines, all) << "lines after the end";
  for (const Index share : shares) {
    EXPECT_LE(share,
              detail::ceil_div(std::ssize(all), tiles * Prefetch::kPiece) * Prefetch::kPiece);
  }
  return all;
}

TEST(Prefetch, FetchesTheLinesOfItsRowsRowByRow) {
  alignas(64) static float numbers[10000];
  alignas(64) static double wide[10000];
  for (const std::uint64_t seed : test::seeds(300)) {
    SCOPED_TRACE(seed);
    test::Random rng(seed);
    const auto tokens = [&rng] {
      std::vector<Index> order(static_cast<std::size_t>(rng.integer(0, 64)));
      for (Index& token : order) token = rng.integer(0, 19);
      return order;
    };
    const std::vector<Index> order = tokens(), other = tokens();
    const Index begin = rng.integer(0, 15);
    const MatrixView<const float> x(numbers + begin, 20, rng.integer(0, 90), 112);
    const MatrixView<const double> y(wide + begin, 20, rng.integer(0, 50), 64);
    std::vector<const void*> expected;
    append_lines(expected, order, x);
    append_lines(expected, order, y);
    append_lines(expected, other, x);
    const Index tiles = rng.integer(1, 50), steps = rng.integer(0, 80);
    Prefetch prefetch(tiles, order.data(), std::ssize(order), x, y);
    prefetch.add(other.data(), std::ssize(other), x);
    EXPECT_EQ(fetched(tiles, steps, prefetch), expected);
  }
}

TEST(Prefetch, MovesOnToTheSameRowsFurtherRight) {
  alignas(64) static float numbers[10000];
  const MatrixView<const float> x(numbers, 20, 48, 480);
  std::vector<Index> order(static_cast<std::size_t>(x.rows));
  std::iota(order.begin(), order.end(), Index{0});
  Prefetch prefetch(7, nullptr, x.rows, x);
  for (Index col = 0; col < 480; col += 96) {
    std::vector<const void*> expected;
    append_lines(expected, order, MatrixView<const float>(x.data + col, 20, 48, 480));
    EXPECT_EQ(fetched(7, 64, prefetch), expected) << "from column " << col;
    prefetch.move(96 * sizeof(float));
  }
}

TEST(Prefetch, TakesNumbersThatLieOneAfterAnotherAsOneRow) {
  alignas(64) static float numbers[1000];
  std::vector<const void*> expected;
  append_lines(expected, {0}, MatrixView<const float>(numbers + 5, 1, 900, 900));
  Prefetch prefetch(7);
  prefetch.add(static_cast<const float*>(nullptr), 900);
  prefetch.add(numbers + 5, 900);
  EXPECT_EQ(fetched(7, 64, prefetch), expected);
}

TEST(Prefetch, HasRoomForManyPiecesAndLeavesOutWholeRowsBehindThem) {
  constexpr Index kRows = 3, kLinesOfRow = (Prefetch::kPieces / kRows + 1) * Prefetch::kPiece;
  const std::vector<float> numbers(kRows * kLinesOfRow * 16 + 16);
  const auto first = reinterpret_cast<std::uintptr_t>(numbers.data());
  const MatrixView<const float> x(numbers.data() + (64 - first % 64) % 64 / sizeof(float), kRows,
                                  kLinesOfRow * 16, kLinesOfRow * 16);
  const std::vector<Index> order = {2, 0, 1};
  std::vector<const void*> expected;
  append_lines(expected, {2, 0}, x);
  Prefetch prefetch(4, order.data(), std::ssize(order), x);
  EXPECT_EQ(fetched(4, 64, prefetch), expected);
}

TEST(Prefetch, TensorsThatAreAbsentOrWhoseColumnsAreApartHaveNoLines) {
  const std::vector<float> numbers(1000);
  for (const Index stride : {0, 2, -1}) {
    const MatrixView<const float> apart(numbers.data() + 500, 3, 20, 100, stride), absent;
    const Index order[] = {0, 1, 2};
    Prefetch prefetch(2, order, 3, apart, absent);
    EXPECT_TRUE(fetched(2, 64, prefetch).empty());
  }
}

TEST(Prefetch, LoadsRowsAheadOfThoseThatAreCopied) {
  alignas(64) static float numbers[64 * 112];
  const MatrixView<const float> x(numbers, 64, 70, 112);  // rows of 5 lines
  std::vector<float> memory(64 * 112), factors(64, 1);
  const detail::Rows<float> rows{memory.data(), 112};
  std::vector<Index> order(64), upwards(64);
  std::iota(order.rbegin(), order.rend(), Index{0});
  std::iota(upwards.begin(), upwards.end(), Index{0});
  const auto expect_lines = [&](Index ahead, const std::vector<Index>& copied, auto&& copy) {
    for (const Index count : {Index{1}, ahead, ahead + 1, Index{64}}) {
      std::vector<const void*> expected;
      for (Index s = ahead; s < count; ++s) {
        const float* const row = x.row(copied[static_cast<std::size_t>(s)]);
        for (Index line = 0; line < 5; ++line) expected.push_back(row + line * 16);
      }
      lines.clear();
      copy(count);
      EXPECT_EQ(lines, expected) << count << " rows";
    }
  };
  expect_lines(8, order, [&](Index count) { detail::gather(x, order.data(), count, rows); });
  expect_lines(8, order, [&](Index count) {
    detail::gather_scaled(x, order.data(), count, factors.data(), rows);
  });
  expect_lines(8, order, [&](Index count) {
    detail::gather_features(x, order.data(), count, Relu{}, static_cast<float*>(nullptr), rows);
  });
  expect_lines(4, upwards, [&](Index count) {
    detail::Panels<float>(count, x.cols, memory.data()).pack(x.middle_rows(0, count));
  });
  lines.clear();
  detail::Panels<float>(64, 70, memory.data()).pack({numbers, 64, 70, 70});
  EXPECT_TRUE(lines.empty()) << "of rows that lie one after another";
}

TEST(Prefetch, LoadsOfAStreamsMatrixWhatIsReadNext) {
  constexpr Index kRows = 256, kCols = 128, kTogether = 16;
  alignas(64) static float matrix[kRows * kCols];
  const std::vector<float> query(kRows);
  std::vector<float> output(kCols);
  const auto read = [&](Index rows) {
    lines.clear();
    const detail::OpenBlock<float> block{matrix, {}, {}, {}, rows, kCols, 1};
    block.read(query.data(), 0, 0, 0, output.data());
  };
  read(kRows);
  std::vector<const void*> expected;
  for (Index i = kTogether * kCols; i < kRows * kCols; i += 16) expected.push_back(matrix + i);
  EXPECT_EQ(lines, expected);
  read(64);
  EXPECT_TRUE(lines.empty()) << "of a matrix that stays in L1";
}

}  // namespace
}  // namespace mhla
