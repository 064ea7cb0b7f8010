#include "mhla/layer/position_embedding.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "support/message_of.hpp"

namespace mhla::test {
namespace {

template <class A>
class Sincos2d : public testing::Test {};
using SincosScalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Sincos2d, SincosScalars);

TYPED_TEST(Sincos2d, IsTheFormulaOfColumnsThenRows) {
  using A = TypeParam;
  for (const auto& [rows, columns, channels] :
       {std::array<Index, 3>{0, 3, 4}, {3, 0, 4}, {1, 1, 4}, {3, 5, 8}, {40, 7, 12}, {2, 64, 20}}) {
    const Matrix<A> e = sincos_2d<A>(rows, columns, channels);
    ASSERT_EQ(e.rows(), rows * columns);
    ASSERT_EQ(e.cols(), channels);
    const Index n = channels / 4;
    for (Index t = 0; t < e.rows(); ++t) {
      for (Index c = 0; c < channels; ++c) {
        const Index position = c < 2 * n ? t % columns : t / columns;
        const long double exponent = static_cast<long double>(c % n) / static_cast<long double>(n);
        const long double angle =
            static_cast<long double>(position) * std::pow(10000.0L, -exponent);
        const long double exact = c / n % 2 == 0 ? std::sin(angle) : std::cos(angle);
        // The power and the angle are rounded in double, and the result to A.
        const double bound = 0.5 * std::numeric_limits<A>::epsilon() +
                             (12 * static_cast<double>(angle) + 1) * 0x1p-53;
        EXPECT_LE(std::abs(e(t, c) - exact), bound) << "token " << t << " channel " << c;
      }
    }
  }
}

TEST(Sincos2dOfAToken, HasTheSinesThenTheCosinesOfItsColumnAndThoseOfItsRow) {
  const Matrix<double> e = sincos_2d<double>(2, 2, 8);  // frequencies 1 and 0.01
  const std::array<double, 8> of_column_1_row_0 = {
      0.8414709848078965, 0.009999833334166664, 0.5403023058681398, 0.9999500004166653, 0, 0, 1, 1};
  for (Index c = 0; c < 8; ++c) {
    EXPECT_NEAR(e(1, c), of_column_1_row_0[static_cast<std::size_t>(c)], 1e-15) << c;
  }
}

TEST(Sincos2dErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  const auto message = [](Index rows, Index columns, Index channels) {
    return message_of<error>([&] { sincos_2d<float>(rows, columns, channels); });
  };
  EXPECT_EQ(message(-1, 2, 4), "mhla::sincos_2d: rows is -1, expected 0 or more");
  EXPECT_EQ(message(2, -1, 4), "mhla::sincos_2d: columns is -1, expected 0 or more");
  EXPECT_EQ(message(2, 2, 6), "mhla::sincos_2d: channels is 6, expected a positive multiple of 4");
  EXPECT_EQ(message(2, 2, 0), "mhla::sincos_2d: channels is 0, expected a positive multiple of 4");
  constexpr Index kHuge = Index{1} << 61;
  EXPECT_EQ(message(kHuge, 1, 4), "mhla::sincos_2d: result has shape [" + std::to_string(kHuge) +
                                      ", 1, 4], expected a product that fits std::ptrdiff_t");
}

}  // namespace
}  // namespace mhla::test
