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

/// The lines of rows order[0..count), from the first byte of each row on.
template <class T>
void append_lines(std::vector<const void*>& all, const std::vector<Index>& order,
                  const MatrixView<const T>& x) {
  for (const Index r : order) {
    const char* const row = reinterpret_cast<const char*>(x.row(r));
    const auto bytes = x.cols * static_cast<Index>(sizeof(T));
    for (Index begin = 0; begin < bytes; begin += 64) all.push_back(row + begin);
  }
}

/// All that is left of a list, fetched a few lines at a time.
std::vector<const void*> fetched(test::Random& rng, Prefetch prefetch) {
  lines.clear();
  while (true) {
    const auto before = std::ssize(lines);
    const Index wanted = rng.integer(1, 20);
    prefetch.fetch(wanted);
    EXPECT_LE(std::ssize(lines) - before, wanted);
    if (std::ssize(lines) - before < wanted) break;
  }
  const auto all = lines;
  prefetch.fetch(100);
  prefetch.finish();
  EXPECT_EQ(lines, all) << "lines behind the end";
  return all;
}

TEST(Prefetch, FetchesTheLinesOfItsRowsOneAfterAnother) {
  const std::vector<float> numbers(10000);
  const std::vector<double> wide(10000);
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
    const MatrixView<const float> x(numbers.data() + begin, 20, rng.integer(0, 90), 100);
    const MatrixView<const double> y(wide.data() + begin, 20, rng.integer(0, 50), 60);
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
    prefetch.fetch(7);
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
