#include "mhla/policy/distance_mixing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/distance_tables.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

template <class A>
class DistanceMixingOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(DistanceMixingOf, Accumulators);

TYPED_TEST(DistanceMixingOf, CoefficientsAreThoseOfTheOffsetsOfBlocks) {
  using A = TypeParam;
  constexpr long double u = std::numeric_limits<A>::epsilon() / 2;
  for_tables<A>([](Random&, const DistanceMixing<A>& f, GridShape blocks, const Pattern& pattern) {
    const MixingMatrix<A> m = distance_matrix(f, blocks, pattern);
    ASSERT_EQ(m.heads(), f.heads());
    ASSERT_EQ(m.pattern(), pattern);
    m.view().for_each_place([&](Index h, Index i, Index b, A c) {
      const A w = table_at(f, blocks, h, i, b);
      if (!f.rows_sum_to_one()) {
        EXPECT_EQ(c, w);
        return;
      }
      // Additions of positive numbers and one division.
      const long double exact = w / row_sum(f, blocks, pattern, h, i);
      const long double roundings = static_cast<long double>(pattern.cols()) * u;
      EXPECT_LE(std::abs(c - exact), roundings / (1 - roundings) * exact);
    });
    if (pattern == Pattern(pattern.rows(), pattern.cols())) {
      const MixingMatrix<A> all = distance_matrix(f.view(), blocks);
      EXPECT_TRUE(std::equal(all.storage().begin(), all.storage().end(), m.storage().begin()));
    }
  });
}

TEST(DistanceMixing, OffsetsKeepTheirCoefficientsInEveryGrid) {
  Random rng(2);
  const auto f = random_table<double>(rng, {3, 5}, 1, false);
  const MixingMatrix<double> small = distance_matrix(f, {2, 4}), wide = distance_matrix(f, {3, 9});
  // Block (0, 1) reads block (1, 3) of both grids.
  EXPECT_EQ(small(1, 4 + 3), wide(1, 9 + 3));
  EXPECT_EQ(small(1, 4 + 3), f.view().at({0, -1, -2}));
  EXPECT_EQ(wide(0, 8), f.view().at({0, 0, -2}));  // 8 blocks away, clamped
}

TEST(DistanceMixing, LaterOffsetsAreNotReadByCausalForms) {
  Random rng(3);
  auto f = random_table<double>(rng, {9}, 1, true);
  const Index m = 5;
  const Pattern triangle(m, m, m, 0);
  const MixingMatrix<double> before = distance_matrix(f, {m}, triangle);
  for (Index offset = -4; offset < 0; ++offset) f.view().at({0, 0, offset}) = NAN;
  EXPECT_EQ(distance_matrix(f, {m}, triangle).dense(), before.dense());
}

TEST(DistanceMixing, StartsAsTheCentreOfAGridReadsIt) {
  for (const LocalityOptions options :
       {LocalityOptions{.falloff = Falloff::kLinear}, LocalityOptions{.falloff = Falloff::kExp},
        LocalityOptions{.falloff = Falloff::kLocal},
        LocalityOptions{.sum_to_one = SumToOne::kColumns},
        LocalityOptions{.sum_to_one = SumToOne::kNothing}}) {
    const DistanceMixing<double> f = distance_locality<double>({3, 5}, options, 2);
    const MixingMatrix<double> grid = locality<double>({3, 5}, options);
    ASSERT_EQ(f.heads(), 2);
    EXPECT_TRUE(f.rows_sum_to_one());
    for (Index h = 0; h < 2; ++h) {
      for (Index row = -1; row <= 1; ++row) {
        for (Index column = -2; column <= 2; ++column) {
          EXPECT_NEAR(f.view().at({0, row, column}, h), grid(7, (row + 1) * 5 + column + 2), 1e-15);
        }
      }
    }
    const double centre = f.view().at({0, 0, 0});
    for (const double x : f.storage()) EXPECT_LE(x, centre);
  }
}

TEST(DistanceMixing, RefusesWhatDoesNotFit) {
  const auto text = [](auto&& call) { return message_of<error>(call); };
  EXPECT_EQ(
      text([] { DistanceMixing<float>(GridShape(4)); }),
      "mhla::DistanceMixing: offsets is [1, 1, 4], expected odd sizes, as many offsets before as "
      "after");
  EXPECT_EQ(text([] { DistanceView<float>(nullptr, {3}, 0); }),
            "mhla::DistanceMixing: heads are 0, expected at least 1");
  EXPECT_THROW(DistanceMixing<float>(GridShape(-1)), option_error);
  EXPECT_THROW(DistanceMixing<float>({3}, Index{1} << 62), shape_error);
  const DistanceMixing<double> f({3}, 2);
  EXPECT_EQ(
      text([&] { distance_matrix(f, {4}); }),
      "mhla::distance_matrix: f has row 0 of matrix 0 with sum 0.000000, expected rows with a "
      "finite sum other than 0");
  EXPECT_EQ(text([&] { distance_matrix(DistanceView<double>(), {4}); }),
            "mhla::distance_matrix: f is absent, expected a table of coefficients");
  EXPECT_EQ(text([&] {
              distance_matrix(f, {2, 3}, Pattern(4, 4));
            }),
            "mhla::distance_matrix: mixing has shape [4, 4], expected [6, 6] (query blocks, key "
            "blocks)");
  EXPECT_THROW(distance_matrix(f, {0}), option_error);
}

}  // namespace
}  // namespace mhla::test
