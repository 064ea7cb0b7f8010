#include "mhla/policy/distance_mixing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

template <class A>
class DistanceMixingOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(DistanceMixingOf, Accumulators);

/// Numbers in [0.25, 2].
template <class A>
DistanceMixing<A> random_table(Random& rng, GridShape offsets, Index heads, bool rows) {
  DistanceMixing<A> f(offsets, heads, rows);
  for (A& x : f.storage()) x = static_cast<A>(rng.uniform(0.25, 2));
  return f;
}

/// Calls f(rng, table, grid of blocks, pattern) for tables smaller and larger than grids of 1 to 3
/// axes.
template <class A, class F>
void for_tables(F&& f) {
  Random rng(1);
  for (const GridShape blocks : {GridShape(1), GridShape(6), GridShape(3, 4), GridShape(2, 3, 3)}) {
    const Index count = blocks[0] * blocks[1] * blocks[2];
    for (const GridShape offsets :
         {GridShape(1), GridShape(5), GridShape(3, 7), GridShape(3, 1, 5), GridShape(9, 9, 9)}) {
      for (const Index heads : {1, 3}) {
        for (const bool rows : {false, true}) {
          for (const Pattern& pattern : {Pattern(count, count), Pattern(count, count, count, 0),
                                         Pattern(count, count, 1, 2)}) {
            f(rng, random_table<A>(rng, offsets, heads, rows), blocks, pattern);
          }
        }
      }
    }
  }
}

/// The definition: f at the offset from a key block to a query block, clamped.
template <class A>
A table_at(const DistanceMixing<A>& f, GridShape blocks, Index h, Index i, Index b) {
  std::size_t at = static_cast<std::size_t>(h);
  const Index inner[] = {blocks[1] * blocks[2], blocks[2], 1};
  for (int axis = 0; axis < 3; ++axis) {
    const Index size = inner[axis], reach = (f.offsets()[axis] - 1) / 2;
    Index offset = i / size % blocks[axis] - b / size % blocks[axis];
    if (offset > reach) offset = reach;
    if (offset < -reach) offset = -reach;
    at =
        at * static_cast<std::size_t>(f.offsets()[axis]) + static_cast<std::size_t>(offset + reach);
  }
  return f.storage()[at];
}

/// The sum of a row of the table in long double, and of another table.
template <class A>
long double row_sum(const DistanceMixing<A>& f, GridShape blocks, const Pattern& pattern, Index h,
                    Index i) {
  long double sum = 0;
  pattern.for_each_in_row(i, [&](Index b, Index) { sum += table_at(f, blocks, h, i, b); });
  return sum;
}

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

/// <dm, J f'> = <J^T dm, f'>, with J f' by the rule of quotients in long double.
TYPED_TEST(DistanceMixingOf, AdjointIsTheTransposeOfTheDerivative) {
  using A = TypeParam;
  constexpr long double u = std::numeric_limits<A>::epsilon() / 2;
  for_tables<A>(
      [](Random& rng, const DistanceMixing<A>& f, GridShape blocks, const Pattern& pattern) {
        DistanceMixing<A> along(f.offsets(), f.heads()), df = along, more = along;
        for (A& x : along.storage()) x = static_cast<A>(rng.uniform(-1, 1));
        for (A& x : more.storage()) x = 3;
        MixingMatrix<A> dm(pattern, f.heads());
        dm.view().for_each([&rng](A& d) { d = static_cast<A>(rng.uniform(-1, 1)); });
        distance_matrix_adjoint(f, blocks, dm, df);
        distance_matrix_adjoint(f.view(), blocks, dm.view(), more.view());
        long double left = 0, right = 0, size = 0;
        dm.view().for_each_place([&](Index h, Index i, Index b, A d) {
          const long double w = table_at(f, blocks, h, i, b), dw = table_at(along, blocks, h, i, b);
          long double tangent = dw, terms = std::abs(dw);
          if (f.rows_sum_to_one()) {
            const long double s = row_sum(f, blocks, pattern, h, i);
            const long double ds = row_sum(along, blocks, pattern, h, i);
            tangent = (dw * s - w * ds) / (s * s);
            terms = 1 / s + w * static_cast<long double>(pattern.cols()) / (s * s);
          }
          left += d * tangent;
          size += terms;
        });
        for (std::size_t n = 0; n < df.storage().size(); ++n) {
          right += static_cast<long double>(df.storage()[n]) * along.storage()[n];
          EXPECT_EQ(more.storage()[n], A(3) + df.storage()[n]);
        }
        // Sums in double, of up to M^2 terms, and one rounding to A.
        const long double count = static_cast<long double>(pattern.rows() * pattern.cols());
        const long double bound = (count + 8) * std::numeric_limits<double>::epsilon() + 2 * u;
        EXPECT_LE(std::abs(left - right), bound * size);
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
  DistanceMixing<double> df(GridShape(9));
  MixingMatrix<double> dm(triangle);
  dm.view().for_each([&rng](double& d) { d = rng.uniform(-1, 1); });
  distance_matrix_adjoint(f, {m}, dm, df);
  for (Index offset = -4; offset < 0; ++offset) {
    EXPECT_EQ(df.view().at({0, 0, offset}), 0);
    f.view().at({0, 0, offset}) = NAN;
  }
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

/// Central differences of <dout, o> in the table.
TEST(DistanceMixing, GradientsOfTheTableAreDerivatives) {
  Random rng(4);
  const Matrix<double> q = rng.matrix<double>(23, 4, 0.1, 1), v = rng.matrix<double>(23, 5, -1, 1),
                       dout = rng.matrix<double>(23, 5, -1, 1);
  const Contiguous blocks(23, 4);
  const Operator op{Relu{}, Relu{}, KeySum{0.1}};
  auto f = random_table<double>(rng, {5}, 1, true);
  const auto in = inputs(q, q, v);
  const auto expect = [&](const Pattern& pattern, const auto& run, const auto& add) {
    MixingMatrix<double> dm(pattern);
    DistanceMixing<double> df(GridShape(5));
    add(distance_matrix(f, {6}, pattern), dm);
    distance_matrix_adjoint(f, {6}, dm, df);
    for (std::size_t n = 0; n < 5; ++n) {
      const auto value = [&](double step) {
        auto moved = f;
        moved.storage()[n] += step;
        return run(distance_matrix(moved, {6}, pattern)).cwiseProduct(dout).sum();
      };
      EXPECT_NEAR(df.storage()[n], (value(1e-5) - value(-1e-5)) / 2e-5, 1e-9);
    }
  };
  expect(
      Pattern(6, 6),
      [&](const MixingMatrix<double>& m) { return bidirectional(in, blocks, m, op); },
      [&](const MixingMatrix<double>& m, MixingMatrix<double>& dm) {
        bidirectional_gradient(in, blocks, m, op, dout, {}, {.mixing = dm});
      });
  expect(
      Pattern(6, 6, 6, 0), [&](const MixingMatrix<double>& m) { return causal(in, blocks, m, op); },
      [&](const MixingMatrix<double>& m, MixingMatrix<double>& dm) {
        causal_gradient(in, blocks, m, op, dout, {}, {.mixing = dm});
      });
}

TEST(DistanceMixing, RefusesWhatDoesNotFitBeforeAnythingIsWritten) {
  const auto text = [](auto&& call) { return message_of<error>(call); };
  EXPECT_EQ(
      text([] { DistanceMixing<float>(GridShape(4)); }),
      "mhla::DistanceMixing: offsets is [1, 1, 4], expected odd sizes, as many offsets before as "
      "after");
  EXPECT_EQ(text([] { DistanceView<float>(nullptr, {3}, 0); }),
            "mhla::DistanceMixing: heads are 0, expected at least 1");
  EXPECT_THROW(DistanceMixing<float>(GridShape(-1)), option_error);
  EXPECT_THROW(DistanceMixing<float>({3}, Index{1} << 62), shape_error);
  DistanceMixing<double> f({3}, 2), df = f;
  const MixingMatrix<double> dm(Pattern(4, 4), 2), one(Pattern(4, 4));
  EXPECT_EQ(
      text([&] { distance_matrix(f, {4}); }),
      "mhla::distance_matrix: f has row 0 of matrix 0 with sum 0.000000, expected rows with a "
      "finite sum other than 0");
  EXPECT_EQ(
      text([&] { distance_matrix_adjoint(f, {4}, dm, df); }),
      "mhla::distance_matrix_adjoint: f has row 0 of matrix 0 with sum 0.000000, expected rows "
      "with a finite sum other than 0");
  EXPECT_EQ(text([&] { distance_matrix(DistanceView<double>(), {4}); }),
            "mhla::distance_matrix: f is absent, expected a table of coefficients");
  EXPECT_EQ(text([&] {
              distance_matrix(f, {2, 3}, Pattern(4, 4));
            }),
            "mhla::distance_matrix: mixing has shape [4, 4], expected [6, 6] (query blocks, key "
            "blocks)");
  EXPECT_THROW(distance_matrix(f, {0}), option_error);
  EXPECT_EQ(
      text([&] { distance_matrix_adjoint(f, {5}, dm, df); }),
      "mhla::distance_matrix_adjoint: mixing has shape [4, 4], expected [5, 5] (query blocks, "
      "key blocks)");
  EXPECT_EQ(text([&] { distance_matrix_adjoint(f, {4}, one, df); }),
            "mhla::distance_matrix_adjoint: dm has 1 matrices, expected 2, one per table of f");
  DistanceMixing<double> other({5}, 2);
  EXPECT_EQ(text([&] { distance_matrix_adjoint(f, {4}, dm, other); }),
            "mhla::distance_matrix_adjoint: df has 10 numbers, expected a table of the offsets and "
            "heads of f");
  for (const double x : df.storage()) EXPECT_EQ(x, 0);
}

}  // namespace
}  // namespace mhla::test
