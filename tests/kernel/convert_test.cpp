#include "mhla/kernel/convert.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/placed.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using detail::narrow;
using detail::widen;
using test::kNaN;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Number of fraction bits of a 16-bit number.
template <class T>
constexpr int kFractionBits = std::is_same_v<T, Eigen::half> ? 10 : 7;

template <class T>
std::uint16_t bits_of(T x) {
  return std::bit_cast<std::uint16_t>(x);
}

/// Returns the number that 16 bits encode, by the definition of IEEE 754.
template <class T>
float number(std::uint16_t bits) {
  constexpr int kExponentBits = 15 - kFractionBits<T>, kBias = (1 << (kExponentBits - 1)) - 1;
  const int fraction = bits & ((1 << kFractionBits<T>)-1);
  const int exponent = (bits & 0x7FFF) >> kFractionBits<T>;
  const float sign = bits & 0x8000 ? -1.f : 1.f;
  if (exponent == (1 << kExponentBits) - 1) return fraction == 0 ? sign * kInfinity : kNaN<float>;
  const int leading = exponent == 0 ? 0 : 1 << kFractionBits<T>;
  return sign * std::ldexp(static_cast<float>(leading + fraction),
                           std::max(exponent, 1) - kBias - kFractionBits<T>);
}

template <class T>
std::vector<T> narrowed(const std::vector<float>& x) {
  std::vector<T> y(x.size());
  narrow(x.data(), y.data(), std::ssize(x));
  return y;
}

template <class T>
class Convert : public testing::Test {};
using Narrow = testing::Types<Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(Convert, Narrow);

TYPED_TEST(Convert, EveryNumberIsWidenedExactlyAndNarrowsToItself) {
  std::vector<TypeParam> all;
  for (int bits = 0; bits < 0x10000; ++bits) {
    all.push_back(std::bit_cast<TypeParam>(static_cast<std::uint16_t>(bits)));
  }
  std::vector<float> wide(all.size());
  widen(all.data(), wide.data(), std::ssize(all));
  const std::vector<TypeParam> again = narrowed<TypeParam>(wide);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const float expected = number<TypeParam>(static_cast<std::uint16_t>(i));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide[i])) << i;
      ASSERT_TRUE(std::isnan(static_cast<float>(again[i]))) << i;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(expected)) << i;
      ASSERT_EQ(bits_of(again[i]), i);
    }
  }
}

TYPED_TEST(Convert, NarrowingRoundsToTheNearestAndTiesToEven) {
  const auto infinity = bits_of(std::numeric_limits<TypeParam>::infinity());
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const auto next = static_cast<std::uint16_t>(bits + 1);
    const float low = number<TypeParam>(bits);
    // The next number, also where that would be infinite.
    const float step = next < infinity
                           ? number<TypeParam>(next) - low
                           : low - number<TypeParam>(static_cast<std::uint16_t>(bits - 1));
    const float tie = low + step / 2;
    const std::uint16_t even = bits % 2 == 0 ? bits : next;
    for (const float sign : {1.f, -1.f}) {
      const auto minus = static_cast<std::uint16_t>(sign < 0 ? 0x8000 : 0);
      const auto got = narrowed<TypeParam>(
          {sign * std::nextafter(tie, 0.f), sign * tie, sign * std::nextafter(tie, kInfinity)});
      ASSERT_EQ(bits_of(got[0]), bits | minus);
      ASSERT_EQ(bits_of(got[1]), even | minus);
      ASSERT_EQ(bits_of(got[2]), next | minus);
    }
  }
}

TYPED_TEST(Convert, AnyBitsNarrowToTheirCastAtEveryPlaceOfEveryRow) {
  test::Random rng(1);
  const auto untouched = std::bit_cast<TypeParam>(std::uint16_t{0x1234});
  for (std::size_t length = 0; length <= 70; ++length) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> x(length);
      for (float& value : x) value = std::bit_cast<float>(static_cast<std::uint32_t>(rng.bits()));
      std::vector<TypeParam> y(length + 2, untouched);
      narrow(x.data(), y.data() + 1, std::ssize(x));
      EXPECT_EQ(bits_of(y.front()), bits_of(untouched));
      EXPECT_EQ(bits_of(y.back()), bits_of(untouched));
      for (std::size_t j = 0; j < length; ++j) {
        if (std::isnan(x[j])) {
          ASSERT_TRUE(std::isnan(static_cast<float>(y[j + 1])));
        } else {
          ASSERT_EQ(bits_of(y[j + 1]), bits_of(static_cast<TypeParam>(x[j]))) << x[j];
        }
      }
    }
  }
}

TYPED_TEST(Convert, RowsOfEveryLengthAreWidenedAndNothingBesideThem) {
  std::vector<TypeParam> x;
  for (int i = 0; i < 70; ++i) x.push_back(static_cast<TypeParam>(static_cast<float>(i - 30)));
  for (Index length = 0; length <= 70; ++length) {
    std::vector<float> wide(72, kNaN<float>);
    widen(x.data(), wide.data() + 1, length);
    for (Index j = -1; j <= 70; ++j) {
      const float got = wide[static_cast<std::size_t>(j + 1)];
      EXPECT_TRUE(j >= 0 && j < length ? got == static_cast<float>(j - 30) : std::isnan(got));
    }
  }
}

}  // namespace
}  // namespace mhla
