#include "mhla/policy/mixing_constraints.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "support/bands.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

template <class A>
class MixingConstraints : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(MixingConstraints, Accumulators);

TYPED_TEST(MixingConstraints, ClampMovesStoredCoefficientsIntoTheRange) {
  using A = TypeParam;
  test::Random rng(5);
  const Matrix<A> c = rng.matrix<A>(6, 6, -2, 2), clamped = c.cwiseMax(A(0.5)).cwiseMin(1);
  MixingMatrix<A> dense(c), lower(c);
  auto band = MixingMatrix<A>::banded(c, 1, 1);
  clamp(dense, A(0.5), 1);
  clamp(band.view(), A(0.5), 1);
  clamp_to_lower_triangle(lower, A(0.5), 1);
  EXPECT_EQ(dense.dense(), clamped);
  EXPECT_EQ(band.dense(), MixingMatrix<A>::banded(clamped, 1, 1).dense());
  EXPECT_EQ(lower.dense(), MixingMatrix<A>::banded(clamped, 6, 0).dense());
  const auto failed = test::message_of<option_error>([&] { clamp(dense, A(1), A(0)); });
  EXPECT_EQ(failed, "mhla::clamp: low is 1.000000, expected at most high, which is 0.000000");
  EXPECT_EQ(dense.dense(), clamped);
}

TYPED_TEST(MixingConstraints, NormalizeRowsDividesEveryRowByItsSum) {
  constexpr long double u = std::numeric_limits<TypeParam>::epsilon() / 2;
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Matrix<TypeParam> c = rng.matrix<TypeParam>(rows, cols, 0.25, 2);
    auto m = MixingMatrix<TypeParam>::banded(c, lower, upper);
    const Pattern& band = m.pattern();
    if (band.first(rows - 1) == band.last(rows - 1)) return;  // an empty row has no sum
    normalize_rows(m);
    for (Index i = 0; i < rows; ++i) {
      long double total = 0;
      for (Index b = band.first(i); b < band.last(i); ++b) total += c(i, b);
      const long double w = static_cast<long double>(band.last(i) - band.first(i));
      for (Index b = band.first(i); b < band.last(i); ++b) {
        // Roundings of w - 1 additions of positive numbers and one division.
        EXPECT_LE(std::abs(m(i, b) - c(i, b) / total), w * u / (1 - w * u) * c(i, b) / total);
      }
    }
  });
}

TYPED_TEST(MixingConstraints, NormalizeRowsRejectsABadRowBeforeAnythingChanges) {
  using Limits = std::numeric_limits<TypeParam>;
  for (const TypeParam bad : {TypeParam(-1), Limits::infinity(), Limits::quiet_NaN()}) {
    Matrix<TypeParam> c = Matrix<TypeParam>::Constant(3, 2, 3);
    c.row(2) << 1, bad;
    MixingMatrix<TypeParam> m(c);
    const std::string text = test::message_of<option_error>([&m] { normalize_rows(m); });
    EXPECT_EQ(text, "mhla::normalize_rows: m has row 2 with sum " + std::to_string(1 + bad) +
                        ", expected rows with a finite sum other than 0");
    EXPECT_TRUE((m.dense().topRows(2).array() == 3).all());
    EXPECT_EQ(m(2, 0), 1);
  }
}

TYPED_TEST(MixingConstraints, HoldForEveryMatrix) {
  using A = TypeParam;
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Pattern band(rows, cols, lower, upper);
    MixingMatrix<A> m(band, 3, 2);
    m.view().for_each([&rng](A& c) { c = static_cast<A>(rng.uniform(0.25, 2)); });
    const auto expect = [&m](auto&& constrain) {
      auto all = m;
      constrain(all);
      for (Index n = 0; n < m.matrices(); ++n) {
        MixingMatrix<A> alone(std::as_const(m).matrix(n));
        constrain(alone);
        EXPECT_EQ(all.matrix(n).dense(), alone.dense());
      }
    };
    expect([](MixingMatrix<A>& of) { clamp(of, A(0.5), A(1)); });
    expect([](MixingMatrix<A>& of) { clamp_to_lower_triangle(of, A(0.5), A(1)); });
    if (band.first(rows - 1) == band.last(rows - 1)) return;  // an empty row has no sum
    expect([](MixingMatrix<A>& of) { normalize_rows(of); });
    m.matrix(5).for_each_in_row(rows - 1, [](Index, A& c) { c = 0; });
    const auto before = m;
    EXPECT_EQ(test::message_of<option_error>([&m] { normalize_rows(m); }),
              "mhla::normalize_rows: m has row " + std::to_string(rows - 1) +
                  " of matrix 5 with sum 0.000000, expected rows with a finite sum other than 0");
    EXPECT_TRUE(std::equal(m.storage().begin(), m.storage().end(), before.storage().begin()));
  });
}

}  // namespace
}  // namespace mhla
