#include "mhla/layer/rotary_table.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// Expects the cosine and the sine of position * base^(-2 pair / features) in the table.
template <class A>
void expect_turn(const RotaryTable<A>& table, Index row, Index at, Index position, double base,
                 Index pair, Index features) {
  using Real = long double;
  const Real exponent = -2 * static_cast<Real>(pair) / static_cast<Real>(features);
  const Real angle = static_cast<Real>(position) * std::pow(static_cast<Real>(base), exponent);
  // The exponent, of size below 1, has one rounding, which changes the angle by ln(base) < 10
  // roundings. The power has two roundings and the product one. Cosine and sine in double have two
  // roundings, the table has one of A.
  constexpr Real kRoundoff = std::numeric_limits<A>::epsilon() / 2;
  constexpr Real kDouble = std::numeric_limits<double>::epsilon() / 2;
  const auto bound = [&](Real exact) {
    return kRoundoff * std::abs(exact) + kDouble * (2 + 13 * std::abs(angle));
  };
  EXPECT_LE(std::abs(table.cos(row, at) - std::cos(angle)), bound(std::cos(angle)))
      << row << ", " << at;
  EXPECT_LE(std::abs(table.sin(row, at) - std::sin(angle)), bound(std::sin(angle)))
      << row << ", " << at;
}

template <class A>
class RotaryTableOf : public testing::Test {};
using RotaryNumbers = testing::Types<float, double>;
TYPED_TEST_SUITE(RotaryTableOf, RotaryNumbers);

TYPED_TEST(RotaryTableOf, ASequenceHasTheAnglesOfItsDefinitionInEitherLayout) {
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kInterleaved}) {
    for (const Index features : {0, 2, 14, 64}) {
      for (const Index first : {0, 5, 30000}) {
        const double base = first == 5 ? 500 : 10000;
        const auto table = RotaryTable<TypeParam>::sequence(
            9, features, {.base = base, .first = first, .pairs = pairs});
        ASSERT_EQ(table.positions(), 9);
        ASSERT_EQ(table.features(), features);
        ASSERT_EQ(table.pairs(), pairs);
        for (Index r = 0; r < 9; ++r) {
          for (Index j = 0; j < features / 2; ++j) {
            expect_turn(table, r, j, first + r, base, j, features);
          }
        }
      }
    }
  }
}

TYPED_TEST(RotaryTableOf, ARowIsCosinesThenSinesOrBothByTurns) {
  using Table = RotaryTable<TypeParam>;
  const Table halves = Table::sequence(3, 4);
  const Table interleaved = Table::sequence(3, 4, {.pairs = RotaryPairs::kInterleaved});
  for (Index r = 0; r < 3; ++r) {
    for (Index j = 0; j < 2; ++j) {
      EXPECT_EQ(halves.row(r)[j], halves.cos(r, j));
      EXPECT_EQ(halves.row(r)[2 + j], halves.sin(r, j));
      EXPECT_EQ(interleaved.row(r)[2 * j], halves.cos(r, j));
      EXPECT_EQ(interleaved.row(r)[2 * j + 1], halves.sin(r, j));
    }
  }
}

TYPED_TEST(RotaryTableOf, AGridHasPairsOfFramesRowsAndColumns) {
  const Index frames = 2, rows = 3, columns = 4;
  struct {
    Index features, of_frames, of_others;
  } const cases[] = {{0, 0, 0}, {4, 2, 0}, {6, 1, 1}, {16, 4, 2}, {128, 22, 21}};
  for (const auto& c : cases) {
    const auto table =
        RotaryTable<TypeParam>::grid(GridShape(frames, rows, columns), c.features, 300);
    ASSERT_EQ(table.positions(), frames * rows * columns);
    ASSERT_EQ(table.features(), c.features);
    ASSERT_EQ(table.pairs(), RotaryPairs::kInterleaved);
    Index token = 0;
    for (Index f = 0; f < frames; ++f) {
      for (Index y = 0; y < rows; ++y) {
        for (Index x = 0; x < columns; ++x, ++token) {
          Index at = 0;
          for (Index j = 0; j < c.of_frames; ++j) {
            expect_turn(table, token, at++, f, 300, j, 2 * c.of_frames);
          }
          for (const Index position : {y, x}) {
            for (Index j = 0; j < c.of_others; ++j) {
              expect_turn(table, token, at++, position, 300, j, 2 * c.of_others);
            }
          }
          ASSERT_EQ(2 * at, c.features);
        }
      }
    }
  }
}

TEST(RotaryTableErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  using Table = RotaryTable<float>;
  const auto sequence = [](Index positions, Index features, double base) {
    return message_of<error>([&] { Table::sequence(positions, features, {.base = base}); });
  };
  EXPECT_EQ(sequence(-1, 4, 10),
            "mhla::RotaryTable::sequence: positions is -1, expected at least 0");
  EXPECT_EQ(sequence(3, 5, 10),
            "mhla::RotaryTable::sequence: features is 5, expected an even number, at least 0");
  EXPECT_EQ(sequence(3, -2, 10),
            "mhla::RotaryTable::sequence: features is -2, expected an even number, at least 0");
  EXPECT_EQ(sequence(3, 4, 0),
            "mhla::RotaryTable::sequence: base is 0.000000, expected more than 0");
  EXPECT_EQ(sequence(3, 4, std::nan("")).substr(0, 33), "mhla::RotaryTable::sequence: base");
  EXPECT_EQ(message_of<shape_error>([] {
              Table::sequence(std::numeric_limits<Index>::max(), 2);
            }).substr(0, 34),
            "mhla::RotaryTable::sequence: table");
  const Table table = Table::sequence(5, 4);
  const auto rows = [&](Index first, Index count) {
    return message_of<shape_error>([&] { table.rows(first, count); });
  };
  EXPECT_EQ(rows(0, 5), "no exception");
  EXPECT_EQ(rows(5, 0), "no exception");
  constexpr Index kMost = std::numeric_limits<Index>::max();
  for (const auto& [first, count] :
       {std::pair<Index, Index>{-1, 2}, {2, -1}, {2, 4}, {6, 0}, {kMost, kMost}, {1, kMost}}) {
    EXPECT_EQ(rows(first, count), "mhla::RotaryTable::rows: rows are " + std::to_string(count) +
                                      " from " + std::to_string(first) + " on, expected some of 5");
  }
  const auto grid = [](const GridShape& tokens, Index features, double base) {
    return message_of<error>([&] { Table::grid(tokens, features, base); });
  };
  EXPECT_EQ(grid(GridShape(2, 0, 3), 6, 10),
            "mhla::RotaryTable::grid: tokens is [2, 0, 3], expected sizes >= 1");
  EXPECT_EQ(grid(GridShape(2, 3), 7, 10),
            "mhla::RotaryTable::grid: features is 7, expected an even number, at least 0");
  EXPECT_EQ(grid(GridShape(2, 3), 6, -1),
            "mhla::RotaryTable::grid: base is -1.000000, expected more than 0");
}

}  // namespace
}  // namespace mhla::test
