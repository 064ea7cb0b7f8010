#include "mhla/policy/locality.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

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

/// Squared distance of two blocks of one grid, exact.
Index squared_distance(GridShape grid, Index i, Index b) {
  const Index f = i / (grid[1] * grid[2]) - b / (grid[1] * grid[2]);
  const Index y = i / grid[2] % grid[1] - b / grid[2] % grid[1];
  const Index x = i % grid[2] - b % grid[2];
  return f * f + y * y + x * x;
}

/// Distance of two blocks of two grids, in blocks of the second.
long double distance_of(GridShape queries, Index i, GridShape keys, Index b) {
  const auto centre = [](GridShape grid, Index block, int axis) {
    const Index places[] = {block / (grid[1] * grid[2]), block / grid[2] % grid[1],
                            block % grid[2]};
    return (static_cast<long double>(places[axis]) + 0.5L) / static_cast<long double>(grid[axis]);
  };
  long double squared = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const long double along =
        (centre(queries, i, axis) - centre(keys, b, axis)) * static_cast<long double>(keys[axis]);
    squared += along * along;
  }
  return std::sqrt(squared);
}

using Wide = Matrix<long double>;

/// Evaluates the formulas of the header.
Wide expected(GridShape queries, GridShape keys, const LocalityOptions& options) {
  Wide distance(blocks_of(queries), blocks_of(keys)), weight = distance;
  for (Index i = 0; i < distance.rows(); ++i) {
    for (Index b = 0; b < distance.cols(); ++b) {
      distance(i, b) = queries == keys
                           ? std::sqrt(static_cast<long double>(squared_distance(keys, i, b)))
                           : distance_of(queries, i, keys, b);
    }
  }
  for (Index i = 0; i < weight.rows(); ++i) {
    const bool by_row = options.sum_to_one == SumToOne::kRows;
    const long double far = by_row ? distance.row(i).maxCoeff() : distance.maxCoeff();
    for (Index b = 0; b < weight.cols(); ++b) {
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
    for (Index i = 0; i < weight.rows(); ++i) weight.row(i) /= weight.row(i).sum();
  } else if (options.sum_to_one == SumToOne::kColumns) {
    for (Index b = 0; b < weight.cols(); ++b) weight.col(b) /= weight.col(b).sum();
  }
  return weight;
}

template <class A>
class Locality : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(Locality, Accumulators);

template <class A>
void expect_formula(const Matrix<A>& got, const Wide& exact) {
  // Before the sum, a weight has the error of its argument's roundings, at most 12 of at most 4.5,
  // and 2 roundings more. The sum has those of its additions and weights; a division and a
  // conversion follow.
  const long double weight = (12 * 4.5L + 2) * kRoundoff<double>;
  const auto most = static_cast<long double>(std::max(exact.rows(), exact.cols()));
  const long double total = weight + most * kRoundoff<double>;
  const long double relative = weight + total + kRoundoff<double> + kRoundoff<A>;
  const long double absolute = 8 * kRoundoff<double>;  // error of 1 - share, where they cancel
  ASSERT_EQ(got.rows(), exact.rows());
  ASSERT_EQ(got.cols(), exact.cols());
  for (Index i = 0; i < exact.rows(); ++i) {
    for (Index b = 0; b < exact.cols(); ++b) {
      ASSERT_LE(std::abs(got(i, b) - exact(i, b)), 1.001L * relative * exact(i, b) + absolute)
          << i << ", " << b;
    }
  }
}

template <class A>
void expect_formula(GridShape grid, const LocalityOptions& options) {
  expect_formula<A>(locality<A>(grid, options).dense(), expected(grid, grid, options));
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

TYPED_TEST(Locality, OfTwoGridsIsItsFormula) {
  const std::pair<GridShape, GridShape> grids[] = {
      {5, 3}, {2, 7}, {{3, 4}, {4, 3}}, {{1, 5}, {2, 4}}, {{2, 3, 4}, {1, 4, 3}}, {{4, 4}, 5}};
  for (const auto& [queries, keys] : grids) {
    for (const Falloff falloff : kFalloffs) {
      for (const SumToOne sum : kSums) {
        SCOPED_TRACE(detail::grid_text(queries) + detail::grid_text(keys) + " falloff " +
                     std::to_string(static_cast<int>(falloff)) + " sum " +
                     std::to_string(static_cast<int>(sum)));
        const LocalityOptions options{.falloff = falloff, .sum_to_one = sum, .threshold = 2.6};
        expect_formula<TypeParam>(locality<TypeParam>(queries, keys, options).dense(),
                                  expected(queries, keys, options));
      }
    }
  }
}

TYPED_TEST(Locality, OfEqualGridsIsThatOfOne) {
  for (const GridShape grid : kGrids) {
    for (const SumToOne sum : kSums) {
      const LocalityOptions options{.sum_to_one = sum};
      EXPECT_EQ(locality<TypeParam>(grid, grid, options).dense(),
                locality<TypeParam>(grid, options).dense());
    }
  }
}

TYPED_TEST(Locality, OfTwoGridsKeepsTheirMirrorImages) {
  const auto m = locality<TypeParam>(GridShape(5), GridShape(3)).dense();
  EXPECT_EQ(m, Matrix<TypeParam>(m.reverse()));
  const auto fine = locality<TypeParam>(GridShape(2), GridShape(4),
                                        {.falloff = Falloff::kLocal, .threshold = 0.5});
  EXPECT_EQ(fine.dense(), (Matrix<TypeParam>(2, 4) << 0.5, 0.5, 0, 0, 0, 0, 0.5, 0.5).finished());
}

TYPED_TEST(Locality, BlocksThatAreEquallyFarAreReadAlike) {
  using M = Matrix<TypeParam>;
  EXPECT_EQ(locality<TypeParam>(GridShape(1), GridShape(2, 2)).dense(), M::Constant(1, 4, 0.25));
  EXPECT_EQ(locality<TypeParam>(GridShape(4), GridShape(1)).dense(), M::Ones(4, 1));
  const auto columns =
      locality<TypeParam>(GridShape(1), GridShape(3), {.sum_to_one = SumToOne::kColumns});
  EXPECT_EQ(columns.dense(), M::Ones(1, 3));
}

TYPED_TEST(Locality, OfAGridIsThatOfItsBlocks) {
  const Grid grid({2, 7, 9}, {1, 3, 4});
  EXPECT_EQ(locality<TypeParam>(grid).dense(), locality<TypeParam>({2, 3, 3}).dense());
  EXPECT_EQ(locality({2, 4}).dense(), locality(GridShape(2, 4)).dense());
  EXPECT_EQ(locality<TypeParam>(grid, Grid({4, 6}, {2, 2})).dense(),
            locality<TypeParam>({2, 3, 3}, {2, 3}).dense());
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
  // The default includes diagonal neighbours: four blocks around a corner.
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
  EXPECT_EQ(test::message_of<option_error>([] {
              locality<float>(4, {2, 0});
            }),
            "mhla::locality: keys is [1, 2, 0], expected sizes >= 1");
  EXPECT_EQ(test::message_of<option_error>([] {
              locality<float>({0, 2}, {2, 2});
            }),
            "mhla::locality: queries is [1, 0, 2], expected sizes >= 1");
  EXPECT_EQ(test::message_of<option_error>([] {
              locality<float>(GridShape(1), GridShape(5),
                              {.falloff = Falloff::kLocal, .sum_to_one = SumToOne::kColumns});
            }),
            "mhla::locality: options have sigma 3.000000 and threshold 1.500000, so that all "
            "weights of key block 0 are 0, expected a larger sigma or "
            "threshold");
  EXPECT_THROW(locality<float>(1, 2, {.falloff = Falloff::kLocal, .threshold = 0.4}), option_error);
  EXPECT_THROW(locality<float>(1, 2, {.falloff = Falloff::kExp, .sigma = 1e-6}), option_error);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(locality<float>(4, {.sigma = nan}), option_error);
  EXPECT_THROW(locality<float>(4, {.threshold = nan}), option_error);
  EXPECT_THROW(locality<float>(4, {.threshold = nan}), option_error);
}

}  // namespace
}  // namespace mhla
