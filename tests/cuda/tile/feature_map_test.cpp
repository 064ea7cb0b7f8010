#include "mhla/cuda/tile/feature_map.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

using cuda_test::to_double;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float phi(const FeatureMap& map, float x) {
  float y = 0;
  map.with_formula([&](auto formula) { y = formula(x); });
  return y;
}

template <class T>
std::uint32_t phi_of_pair(const FeatureMap& map, std::uint32_t pair) {
  std::uint32_t pairs[2] = {0, pair};
  apply<T>(map, pairs);
  return pairs[1];
}

/// Calls f with every number of T.
template <class T, class F>
void for_all(const F& f) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) f(T{static_cast<std::uint16_t>(bits)});
}

template <class T>
class FeatureMaps : public testing::Test {};
using Types = testing::Types<bfloat16, half>;
TYPED_TEST_SUITE(FeatureMaps, Types);

TYPED_TEST(FeatureMaps, IdentityKeepsEveryNumber) {
  const FeatureMap map = FeatureMap::identity();
  for_all<TypeParam>([&](TypeParam x) {
    const double value = to_double(x);
    const float y = phi(map, static_cast<float>(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(y)) << x.bits;
    } else {
      ASSERT_EQ(static_cast<double>(y), value) << x.bits;
      const std::uint32_t pair = phi_of_pair<TypeParam>(map, x.bits | 0x3C000000u);
      // -0 + 0 is 0.
      ASSERT_EQ(pair & 0xFFFF, x.bits == 0x8000 ? 0u : std::uint32_t{x.bits}) << x.bits;
    }
  });
}

TYPED_TEST(FeatureMaps, ReluIsNotBelowItsEps) {
  for (const float eps : {0.0f, 1e-6f, 0.25f}) {
    const FeatureMap map = FeatureMap::relu(eps);
    for_all<TypeParam>([&](TypeParam x) {
      const float value = static_cast<float>(to_double(x));
      const float y = phi(map, value);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(y)) << x.bits;
      } else {
        ASSERT_EQ(y, value > 0 ? value + eps : eps) << x.bits;
      }
    });
  }
}

// phi = e^x for x <= 0, computed as 2^(x c) with c = float(log2 e): c and the product are off by
// 2^-24 each, relatively, so the exponent by |x| c 2^-23 and the power by ln 2 times that, |x|
// 2^-23, with exp2's own 2^-22. Results below 2^-126 may become 0.
TYPED_TEST(FeatureMaps, EluPlusOneIsOneMoreOrThePower) {
  const FeatureMap map = FeatureMap::elu_plus_one();
  for_all<TypeParam>([&](TypeParam x) {
    const double value = to_double(x);
    const double y = static_cast<double>(phi(map, static_cast<float>(value)));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(y)) << x.bits;
    } else if (value > 0) {
      ASSERT_EQ(y, static_cast<double>(static_cast<float>(value) + 1)) << x.bits;
    } else {
      const double power = std::exp(value);
      const double bound =
          power * (0x1p-22 + (std::isinf(value) ? 0 : -value) * 0x1p-22) + 0x1p-126;
      ASSERT_NEAR(y, power, std::isinf(value) ? 0 : bound) << x.bits;
    }
  });
}

TYPED_TEST(FeatureMaps, PairsAreRoundedOnceAndStayInOrder) {
  using T = TypeParam;
  test::Random rng(7);
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(), FeatureMap::elu_plus_one()}) {
    for (int i = 0; i < 20000; ++i) {
      const T low = cuda_test::from_double<T>(rng.normal());
      const T high = cuda_test::from_double<T>(3 * rng.normal());
      const std::uint32_t pair = phi_of_pair<T>(map, low.bits | std::uint32_t{high.bits} << 16);
      const auto expected = [&](T x) {
        const float y = phi(map, static_cast<float>(to_double(x)));
        return std::uint32_t{cuda_test::from_double<T>(static_cast<double>(y)).bits};
      };
      ASSERT_EQ(pair & 0xFFFF, expected(low));
      ASSERT_EQ(pair >> 16, expected(high));
    }
  }
}

TEST(FeatureMap, HasLimits) {
  EXPECT_EQ(phi(FeatureMap::identity(), -kInfinity), -kInfinity);
  EXPECT_EQ(phi(FeatureMap::identity(), kInfinity), kInfinity);
  EXPECT_EQ(phi(FeatureMap::relu(0), -kInfinity), 0.0f);
  EXPECT_EQ(phi(FeatureMap::elu_plus_one(), -kInfinity), 0.0f);
  EXPECT_EQ(phi(FeatureMap::elu_plus_one(), 0.0f), 1.0f);
  EXPECT_EQ(phi(FeatureMap::elu_plus_one(), kInfinity), kInfinity);
}

}  // namespace
}  // namespace mhla::cuda
