// Prefetches leave no trace, so here they are written down: every one of the library in this file
// calls test::prefetched. The other name of the target keeps these functions apart from those of
// the files that this one is linked with.

#include <Eigen/Core>

#define MHLA_EMULATE_MATRIX_UNIT
#define __builtin_prefetch(address, ...) ::mhla::test::prefetched(address)

namespace mhla::test {
void prefetched(const void* line);
}  // namespace mhla::test

#include "mhla/kernel/prefetch.hpp"

#undef __builtin_prefetch

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "support/random.hpp"

namespace mhla {
namespace test {

std::vector<const void*> lines;
void prefetched(const void* line) { lines.push_back(line); }

}  // namespace test
namespace {

using detail::Prefetch;
using test::lines;

/// The lines of rows order[0..count): the first one of every row, then the second one of every row.
template <class T>
void append_lines(std::vector<const void*>& all, const std::vector<Index>& order,
                  const MatrixView<const T>& x) {
  const auto line_of = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) / 64 * 64; };
  if (x.cols == 0) return;
  const std::uintptr_t last = line_of(x.row(0) + x.cols - 1);
  for (std::uintptr_t column = line_of(x.row(0)); column <= last; column += 64) {
    const auto begin = std::ssize(all);
    for (const Index r : order) {
      const auto bytes = r * x.row_stride * static_cast<Index>(sizeof(T));
      all.push_back(reinterpret_cast<const char*>(column) + bytes);
    }
    std::sort(all.begin() + begin, all.end());
  }
}

/// What was fetched, the lines of each column sorted; columns are of `rows` rows each.
std::vector<const void*> sorted(std::vector<const void*> all, const std::vector<Index>& rows) {
  auto begin = all.begin();
  for (const Index count : rows) {
    const auto end = begin + std::min<Index>(count, all.end() - begin);
    std::sort(begin, end);
    begin = end;
  }
  return all;
}

/// All lines of a list for `tiles` tiles of `steps` steps, which get about as many each.
std::vector<const void*> fetched(Index tiles, Index steps, Prefetch prefetch) {
  lines.clear();
  std::vector<Index> shares;
  for (Index tile = 0; tile < tiles; ++tile) {
    const auto before = std::ssize(lines);
    const Prefetch::Lines share = prefetch.share(steps);
    EXPECT_LE(share.count, steps);
    share.fetch_from(0);
    shares.push_back(std::ssize(lines) - before);
  }
  prefetch.finish();
  const auto all = lines;
  prefetch.finish();
  EXPECT_EQ(prefetch.share(steps).count, 0);
  EXPECT_EQ(lines, all) << "lines behind the end";
  // Shares are rounded to equal parts of a column, which at most doubles them.
  for (const Index share : shares) EXPECT_LE(share, 2 * detail::ceil_div(std::ssize(all), tiles));
  return all;
}

TEST(Prefetch, FetchesEachLineOfItsRowsOnceTheFirstOnesOfAllRowsFirst) {
  alignas(64) static float numbers[10000];
  alignas(64) static double wide[10000];
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    test::Random rng(seed);
    const auto tokens = [&rng] {
      std::vector<Index> order(static_cast<std::size_t>(rng.integer(0, Prefetch::kRows)));
      for (Index& token : order) token = rng.integer(0, 19);
      return order;
    };
    const std::vector<Index> order = tokens(), other = tokens();
    const Index begin = rng.integer(0, 15);
    const MatrixView<const float> x(numbers + begin, 20, rng.integer(0, 90), 112);
    const MatrixView<const double> y(wide + begin, 20, rng.integer(0, 50), 64);
    std::vector<const void*> expected;
    std::vector<Index> rows;  // of every column
    const auto append = [&](const std::vector<Index>& of, const auto& tensor) {
      const auto before = std::ssize(expected);
      append_lines(expected, of, tensor);
      if (of.empty()) return;
      rows.insert(rows.end(),
                  static_cast<std::size_t>((std::ssize(expected) - before) / std::ssize(of)),
                  std::ssize(of));
    };
    append(order, x);
    append(order, y);
    const Index tiles = rng.integer(1, 50);
    Prefetch prefetch(tiles, order.data(), std::ssize(order), x, y);
    prefetch.add(other.data(), std::ssize(other), x);
    append(other, x);
    const Index steps = rng.integer(0, 80);
    EXPECT_EQ(sorted(fetched(tiles, steps, prefetch), rows), expected);
    lines.clear();
    prefetch.share(steps).fetch_from(0);
    prefetch.finish();
    EXPECT_EQ(sorted(lines, rows), expected);
  }
}

TEST(Prefetch, TensorsThatAreAbsentOrWhoseColumnsAreApartHaveNoLines) {
  const std::vector<float> numbers(1000);
  for (const Index stride : {0, 2, -1}) {
    const MatrixView<const float> apart(numbers.data() + 500, 3, 20, 100, stride), absent;
    const Index order[] = {0, 1, 2};
    EXPECT_TRUE(fetched(2, 64, Prefetch(2, order, 3, apart, absent)).empty());
  }
  EXPECT_TRUE(fetched(2, 64, Prefetch()).empty());
}

}  // namespace
}  // namespace mhla
