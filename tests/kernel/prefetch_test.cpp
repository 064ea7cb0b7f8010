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

#include <cstdint>
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
    for (const Index r : order) {
      const auto bytes = r * x.row_stride * static_cast<Index>(sizeof(T));
      all.push_back(reinterpret_cast<const char*>(column) + bytes);
    }
  }
}

/// All that is left of a list, taken a few lines at a time.
std::vector<const void*> fetched(test::Random& rng, Prefetch prefetch) {
  lines.clear();
  while (true) {
    const Index most = rng.integer(1, 20);
    const Prefetch::Lines taken = prefetch.take(most);
    if (taken.count == 0) break;
    EXPECT_LE(taken.count, most);
    for (Index i = 0; i < taken.count; ++i) taken.fetch(i);
  }
  const auto all = lines;
  prefetch.finish();
  EXPECT_EQ(lines, all) << "lines behind the end";
  return all;
}

TEST(Prefetch, FetchesEachLineOfItsRowsOnceTheFirstOnesOfAllRowsFirst) {
  alignas(64) static float numbers[10000];
  alignas(64) static double wide[10000];
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    test::Random rng(seed);
    const auto tokens = [&rng] {
      std::vector<Index> order(static_cast<std::size_t>(rng.integer(0, 10)));
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
    Prefetch prefetch(order.data(), std::ssize(order), x, y);
    prefetch.add(other.data(), std::ssize(other), x);
    append_lines(expected, other, x);
    prefetch.add(nullptr, 3, y);
    append_lines(expected, {0, 1, 2}, y);
    EXPECT_EQ(fetched(rng, prefetch), expected);
    lines.clear();
    const Prefetch::Lines some = prefetch.take(7);
    for (Index i = 0; i < some.count; ++i) some.fetch(i);
    prefetch.finish();
    EXPECT_EQ(lines, expected);
  }
}

TEST(Prefetch, TensorsThatAreAbsentOrWhoseColumnsAreApartHaveNoLines) {
  const std::vector<float> numbers(1000);
  test::Random rng(1);
  for (const Index stride : {0, 2, -1}) {
    const MatrixView<const float> apart(numbers.data() + 500, 3, 20, 100, stride), absent;
    EXPECT_TRUE(fetched(rng, Prefetch(nullptr, 3, apart, absent)).empty());
  }
  EXPECT_TRUE(fetched(rng, Prefetch()).empty());
}

}  // namespace
}  // namespace mhla
