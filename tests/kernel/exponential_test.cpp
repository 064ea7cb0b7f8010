#include "mhla/kernel/exponential.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "support/placed.hpp"

namespace mhla {
namespace {

using test::kRoundoff;
using test::numbers;

template <class A>
std::vector<A> exponentials(const std::vector<A>& x) {
  std::vector<A> y(x.size());
  detail::transform(x.data(), y.data(), std::ssize(x),
                    [](auto p) { return detail::exponential(p); });
  return y;
}

/// Relative errors, flush to zero and overflow of e^x at each x.
template <class A>
void expect_exponentials(const std::vector<A>& x) {
  using Limits = std::numeric_limits<A>;
  const std::vector<A> y = exponentials(x);
  const long double bound = detail::kExponentialRoundoffs * kRoundoff<A>;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double exact = std::exp(static_cast<long double>(x[i]));
    if (exact < Limits::min()) {
      ASSERT_EQ(y[i], 0) << "x = " << x[i];
    } else if (exact > Limits::max()) {
      ASSERT_EQ(y[i], Limits::infinity()) << "x = " << x[i];
    } else {
      ASSERT_LE(std::abs(y[i] - exact), bound * exact) << "x = " << x[i];
    }
  }
}

template <class A>
class ExponentialOf : public testing::Test {};
using ExponentialScalars = testing::Types<float, double>;
TYPED_TEST_SUITE(ExponentialOf, ExponentialScalars);

TYPED_TEST(ExponentialOf, IsWithinItsRoundoffsOverTheWholeRange) {
  using A = TypeParam;
  const A high = static_cast<A>(std::log(std::numeric_limits<A>::max()) * 1.1);
  for (const A end : {high, A(2)}) {
    std::vector<A> x;
    constexpr Index kCount = 400000;
    for (Index i = 0; i < kCount; ++i) {
      x.push_back(-end + 2 * end * (static_cast<A>(i) / static_cast<A>(kCount - 1)));
    }
    expect_exponentials(x);
  }
}

TYPED_TEST(ExponentialOf, IsRightAtTheEndsOfItsRangeAndWhereItsReductionTurns) {
  using A = TypeParam;
  using Limits = std::numeric_limits<A>;
  for (const A limit : {Limits::max(), Limits::min()}) {
    const long double end = std::log(static_cast<long double>(limit));
    std::vector<A> x{static_cast<A>(end)};
    for (int i = 0; i < 500; ++i) {
      x.push_back(std::nextafter(x.back(), A(0)));
      x.insert(x.begin(), std::nextafter(x.front(), static_cast<A>(2 * end)));
    }
    expect_exponentials(x);
  }
  std::vector<A> x;  // around multiples of ln(2) / 2
  for (int n = -120; n <= 120; ++n) {
    x.push_back(static_cast<A>(n * 0.34657359027997264L));
    x.push_back(std::nextafter(x.back(), A(1e3)));
    x.push_back(std::nextafter(x.back(), A(-1e3)));
  }
  expect_exponentials(x);
}

TYPED_TEST(ExponentialOf, KnowsTheSpecialValues) {
  using Limits = std::numeric_limits<TypeParam>;
  const std::vector<TypeParam> y =
      exponentials<TypeParam>({0, -TypeParam(0), Limits::denorm_min(), -Limits::denorm_min(),
                               Limits::infinity(), -Limits::infinity(), Limits::max(),
                               Limits::lowest(), Limits::quiet_NaN(), -Limits::quiet_NaN()});
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(y[i], 1) << i;
  EXPECT_EQ(y[4], Limits::infinity());
  EXPECT_EQ(y[5], 0);
  EXPECT_EQ(y[6], Limits::infinity());
  EXPECT_EQ(y[7], 0);
  EXPECT_TRUE(std::isnan(y[8]));
  EXPECT_TRUE(std::isnan(y[9]));
}

TYPED_TEST(ExponentialOf, OfNaNIsNaNWhateverItsBits) {
  using A = TypeParam;
  using Bits = std::conditional_t<std::same_as<A, float>, std::uint32_t, std::uint64_t>;
  const Bits nan = std::bit_cast<Bits>(std::numeric_limits<A>::quiet_NaN());
  std::vector<A> x;
  for (int bit = 0; bit < std::numeric_limits<A>::digits - 2; ++bit) {
    for (const Bits payload : {Bits{1} << bit, (Bits{2} << bit) - 1}) {
      x.push_back(std::bit_cast<A>(nan | payload));
      x.push_back(-x.back());
    }
  }
  for (const A y : exponentials(x)) EXPECT_TRUE(std::isnan(y)) << y;
}

TYPED_TEST(ExponentialOf, BelowZeroItHasTheSameBits) {
  using P = detail::Packet<TypeParam>;
  using Limits = std::numeric_limits<TypeParam>;
  test::Random rng(2);
  std::vector<TypeParam> x = numbers<TypeParam>(rng, 4000, -800, 0);
  for (const TypeParam special : {TypeParam(0), -TypeParam(0), -Limits::denorm_min(),
                                  Limits::lowest(), -Limits::infinity()}) {
    x.push_back(special);
  }
  for (const TypeParam number : x) {
    const P p = Eigen::internal::pset1<P>(number);
    EXPECT_EQ(Eigen::internal::pfirst(detail::exponential_below_zero(p)),
              Eigen::internal::pfirst(detail::exponential(p)))
        << "x = " << number;
  }
  const P nan = Eigen::internal::pset1<P>(Limits::quiet_NaN());
  EXPECT_TRUE(std::isnan(Eigen::internal::pfirst(detail::exponential_below_zero(nan))));
}

TYPED_TEST(ExponentialOf, OfALaneItDoesNotDependOnTheOthers) {
  test::Random rng(1);
  const std::vector<TypeParam> x = numbers<TypeParam>(rng, 200, -50, 50);
  const std::vector<TypeParam> together = exponentials(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(exponentials<TypeParam>({x[i]})[0], together[i]) << "x = " << x[i];
    EXPECT_EQ(detail::exponential(x[i]), together[i]) << "x = " << x[i];
  }
}

}  // namespace
}  // namespace mhla
