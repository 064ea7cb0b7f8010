#include "mhla/core/scalar.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/random.hpp"

namespace mhla {
namespace {

static_assert(Accumulator<float> && Accumulator<double>);
static_assert(!Accumulator<Eigen::half> && !Accumulator<Eigen::bfloat16>);
static_assert(!Accumulator<long double> && !Accumulator<int> && !Accumulator<const float>);

static_assert(Scalar<float> && Scalar<double> && Scalar<Eigen::half> && Scalar<Eigen::bfloat16>);
static_assert(!Scalar<int> && !Scalar<bool> && !Scalar<long double> && !Scalar<const float>);

static_assert(std::is_same_v<accumulator_t<float>, float>);
static_assert(std::is_same_v<accumulator_t<double>, double>);
static_assert(std::is_same_v<accumulator_t<Eigen::half>, float>);
static_assert(std::is_same_v<accumulator_t<Eigen::bfloat16>, float>);

static_assert(std::is_signed_v<Index> && sizeof(Index) == sizeof(void*));

TEST(Scalar, RoundoffOfAnAccumulatorIsTheOneInTheTable) {
  EXPECT_EQ(std::numeric_limits<float>::epsilon() / 2, 0x1p-24f);
  EXPECT_EQ(std::numeric_limits<double>::epsilon() / 2, 0x1p-53);
}

template <class T>
class NarrowScalar : public testing::Test {
 public:
  static T from_bits(std::uint16_t bits) { return std::bit_cast<T>(bits); }

  /// All finite values, ascending.
  static std::vector<float> finite_values() {
    std::vector<float> values;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto x = static_cast<float>(from_bits(static_cast<std::uint16_t>(bits)));
      if (std::isfinite(x)) values.push_back(x);
    }
    std::sort(values.begin(), values.end());
    return values;
  }

  /// True if the significand of x in T is even: x / ulp is.
  static bool even(float x) { return (std::bit_cast<std::uint16_t>(static_cast<T>(x)) & 1) == 0; }
};
using NarrowScalars = testing::Types<Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(NarrowScalar, NarrowScalars);

TYPED_TEST(NarrowScalar, EveryPatternSurvivesItsAccumulator) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const TypeParam x = this->from_bits(static_cast<std::uint16_t>(bits));
    const auto wide = static_cast<accumulator_t<TypeParam>>(x);
    const auto back = static_cast<TypeParam>(wide);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(back))) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint16_t>(back), bits);
    }
  }
}

TYPED_TEST(NarrowScalar, RoundsToTheNearestAndTiesToEven) {
  const std::vector<float> values = this->finite_values();
  test::Random rng(2);
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const float low = values[i], high = values[i + 1];
    if (low == high) continue;  // -0 and 0
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(static_cast<float>(static_cast<TypeParam>(middle)), this->even(low) ? low : high);
    const auto inside = static_cast<float>(rng.uniform(low, high));
    if (inside == middle) continue;
    EXPECT_EQ(static_cast<float>(static_cast<TypeParam>(inside)), inside < middle ? low : high);
  }
}

TYPED_TEST(NarrowScalar, BeyondTheRangeIsInfinity) {
  const float largest = this->finite_values().back();
  EXPECT_EQ(static_cast<float>(static_cast<TypeParam>(largest)), largest);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(static_cast<TypeParam>(std::numeric_limits<float>::max())),
            infinity);
  EXPECT_EQ(static_cast<float>(static_cast<TypeParam>(-infinity)), -infinity);
}

}  // namespace
}  // namespace mhla
