#include "mhla/policy/locality.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "support/message_of.hpp"
#include "support/placed.hpp"

namespace mhla {
namespace {

using test::kRoundoff;

constexpr Falloff kFalloffs[] = {Falloff::kLinear, Falloff::kCos, Falloff::kExp, Falloff::kGaussian,
                                 Falloff::kLocal};
constexpr SumToOne kSums[] = {SumToOne::kRows, SumToOne::kColumns, SumToOne::kNothing};
const GridShape kGrids[] = {1, 2, 7, {2, 2}, {4, 4}, {3, 5}, {2, 3, 4}, {3, 1, 2}};

Index blocks_of(GridShape grid) { return grid[0] * grid[1] * grid[2]; }

/// The squared distance of two blocks, exact.
Index squared_distance(GridShape grid, Index i, Index b) {
  const Index f = i / (grid[1] * grid[2]) - b / (grid[1] * grid[2]);
  const Index y = i / grid[2] % grid[1] - b / grid[2] % grid[1];
  const Index x = i % grid[2] - b % grid[2];
  return f * f + y * y + x * x;
}

using Wide = Matrix<long double>;

/// The formulas of the header.
Wide expected(GridShape grid, const LocalityOptions& options) {
  const Index m = blocks_of(grid);
  Wide distance(m, m), weight(m, m);
  for (Index i = 0; i < m; ++i) {
    for (Index b = 0; b < m; ++b) {
      distance(i, b) = std::sqrt(static_cast<long double>(squared_distance(grid, i, b)));
    }
  }
  for (Index i = 0; i < m; ++i) {
    const bool by_row = options.sum_to_one == SumToOne::kRows;
    const long double far = by_row ? distance.row(i).maxCoeff() : distance.maxCoeff();
    for (Index b = 0; b < m; ++b) {
      const long double dist = distance(i, b), share = far > 0 ? dist / far : 0;
      const long double deviation = far / 3;
      switch (options.falloff) {
        case Falloff::kLinear:
          weight(i, b) = 1 - share;
          break;
        case Falloff::kCos:
          weight(i, b) = std::cos(share * std::acos(-1.0L) / 4);
          break;
        case Falloff::kExp:
          weight(i, b) = std::exp(-dist / static_cast<long double>(options.sigma));
          break;
        case Falloff::kGaussian:
          weight(i, b) = far > 0 ? std::exp(-dist * dist / (2 * deviation * deviation)) : 1;
          break;
        case Falloff::kLocal:
          weight(i, b) = dist <= static_cast<long double>(options.threshold) ? 1 : 0;
      }
    }
  }
  if (options.sum_to_one == SumToOne::kRows) {
    for (Index i = 0; i < m; ++i) weight.row(i) /= weight.row(i).sum();
  } else if (options.sum_to_one == SumToOne::kColumns) {
    for (Index b = 0; b < m; ++b) weight.col(b) /= weight.col(b).sum();
  }
  return weight;
}

template <class A>
class Locality : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(Locality, Accumulators);

template <class A>
void expect_formula(GridShape grid, const LocalityOptions& options) {
  const Index m = blocks_of(grid);
  const Wide exact = expected(grid, options);
  const Matrix<A> got = locality<A>(grid, options).dense();
  // A weight before the sum errs by the roundings of its argument, at most 9 of at most 4.5, and
  // its own 2; the sum by its additions and its weights; then a division and a conversion.
  const long double weight = (9 * 4.5L + 2) * kRoundoff<double>;
  const long double total = weight + static_cast<long double>(m) * kRoundoff<double>;
  const long double relative = weight + total + kRoundoff<double> + kRoundoff<A>;
  const long double absolute = 4 * kRoundoff<double>;  // of 1 - share, where they cancel
  for (Index i = 0; i < m; ++i) {
    for (Index b = 0; b < m; ++b) {
      ASSERT_LE(std::abs(got(i, b) - exact(i, b)), 1.001L * relative * exact(i, b) + absolute)
          << i << ", " << b;
    }
  }
}

TYPED_TEST(Locality, IsItsFormula) {
  for (const GridShape grid : kGrids) {
    for (const Falloff falloff : kFalloffs) {
      for (const SumToOne sum : kSums) {
        SCOPED_TRACE(detail::grid_text(grid) + " falloff " +
                     std::to_string(static_cast<int>(falloff)) + " sum " +
                     std::to_string(static_cast<int>(sum)));
        expect_formula<TypeParam>(grid, {.falloff = falloff, .sum_to_one = sum});
      }
    }
    expect_formula<TypeParam>(grid, {.falloff = Falloff::kExp, .sigma = 0.7});
    expect_formula<TypeParam>(grid, {.falloff = Falloff::kLocal, .threshold = 2.5});
  }
}

TYPED_TEST(Locality, OfAGridIsThatOfItsBlocks) {
  const Grid grid({2, 7, 9}, {1, 3, 4});
  EXPECT_EQ(locality<TypeParam>(grid).dense(), locality<TypeParam>({2, 3, 3}).dense());
  EXPECT_EQ(locality({2, 4}).dense(), locality(GridShape(2, 4)).dense());
}

TYPED_TEST(Locality, LinearIsExactlyZeroForTheFarthestPairs) {
  for (const GridShape grid : kGrids) {
    const Index last = blocks_of(grid) - 1;
    if (last == 0) continue;
    for (const SumToOne sum : kSums) {
      const auto m = locality<TypeParam>(grid, {.sum_to_one = sum});
      EXPECT_EQ(m(0, last), 0);
      EXPECT_EQ(m(last, 0), 0);
      EXPECT_GT(m(0, 0), 0);
    }
  }
}

TYPED_TEST(Locality, LocalTakesInTheThresholdItself) {
  const GridShape grid(3, 3);
  const auto m = locality<TypeParam>(
      grid, {.falloff = Falloff::kLocal, .sum_to_one = SumToOne::kNothing, .threshold = 1});
  for (Index i = 0; i < 9; ++i) {
    for (Index b = 0; b < 9; ++b) {
      EXPECT_EQ(m(i, b), squared_distance(grid, i, b) <= 1 ? 1 : 0);
    }
  }
  // The default takes in the diagonal neighbours: four blocks around a corner.
  const auto rows = locality<TypeParam>(grid, {.falloff = Falloff::kLocal});
  EXPECT_EQ(rows(0, 4), TypeParam(0.25));
  EXPECT_EQ(rows(0, 2), 0);
}

TEST(LocalityOptions, RejectsBadOptions) {
  const auto text = [](GridShape grid, const LocalityOptions& options) {
    return test::message_of<option_error>([&] { locality<float>(grid, options); });
  };
  EXPECT_EQ(text({4, 0}, {}), "mhla::locality: blocks is [1, 4, 0], expected sizes >= 1");
  EXPECT_EQ(text(4, {.sigma = 0}),
            "mhla::locality: options have sigma 0.000000 and threshold 1.500000, "
            "expected sigma > 0 and threshold >= 0");
  EXPECT_EQ(text(4, {.threshold = -1}),
            "mhla::locality: options have sigma 3.000000 and threshold -1.000000, "
            "expected sigma > 0 and threshold >= 0");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(locality<float>(4, {.sigma = nan}), option_error);
  EXPECT_THROW(locality<float>(4, {.threshold = nan}), option_error);
}

}  // namespace
}  // namespace mhla
