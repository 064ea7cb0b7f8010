#include "mhla/cuda/tile/feature_map.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

using cuda_test::to_double;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
std::uint32_t phi_of_pair(const FeatureMap& map, std::uint32_t pair) {
  std::uint32_t pairs[2] = {0, pair};
  apply<T>(map, pairs);
  return pairs[1];
}

template <class T>
T phi(const FeatureMap& map, T x) {
  return {static_cast<std::uint16_t>(phi_of_pair<T>(map, x.bits) & 0xFFFF)};
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
    const TypeParam y = phi(map, x);
    if (std::isnan(to_double(x))) {
      ASSERT_TRUE(std::isnan(to_double(y))) << x.bits;
    } else {  // -0 + 0 is 0
      ASSERT_EQ(y.bits, x.bits == 0x8000 ? 0 : x.bits) << x.bits;
    }
  });
}

TYPED_TEST(FeatureMaps, ReluIsNotBelowItsEps) {
  for (const float eps : {0.0f, 1e-6f, 0.25f}) {
    const double rounded_eps = cuda_test::round_to<TypeParam>(static_cast<double>(eps));
    for_all<TypeParam>([&](TypeParam x) {
      const double value = to_double(x), y = to_double(phi(FeatureMap::relu(eps), x));
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(y)) << x.bits;
      } else {
        ASSERT_EQ(y, cuda_test::round_to<TypeParam>(std::max(value, 0.0) + rounded_eps)) << x.bits;
      }
    });
  }
}

// phi = e^x for x <= 0, computed as 2^(x c) with c = float(log2 e). c and the product have relative
// errors of 2^-24 each, so the exponent is off by |x| c 2^-23. The power is off by ln 2 times that,
// |x| 2^-23, and by 2^-22 of exp2. The test allows twice the first. Results below 2^-126 may become
// 0.
TYPED_TEST(FeatureMaps, EluPlusOneIsOneMoreOrThePower) {
  for_all<TypeParam>([&](TypeParam x) {
    const double value = to_double(x);
    const double y = static_cast<double>(EluPlusOne{}(static_cast<float>(value)));
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

TYPED_TEST(FeatureMaps, EpsIsTheNearestNumber) {
  test::Random rng(3);
  std::vector<float> numbers{0.0f, 0x1p-25f, 0x1.8p-24f, 0x1p-14f, 65519.0f, 65520.0f};
  for (int i = 0; i < 20000; ++i) {
    numbers.push_back(std::ldexp(static_cast<float>(rng.uniform(1, 2)), i % 60 - 40));
  }
  for (const float x : numbers) {
    for (const float y : {x, -x}) {
      const std::uint32_t bits = cuda_test::from_double<TypeParam>(static_cast<double>(y)).bits;
      ASSERT_EQ(BothPairs::of(y).as<TypeParam>(), bits | bits << 16) << y;
    }
  }
}

TYPED_TEST(FeatureMaps, NumbersOfAPairStayInOrder) {
  using T = TypeParam;
  test::Random rng(7);
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(), FeatureMap::elu_plus_one()}) {
    for (int i = 0; i < 20000; ++i) {
      const T low = cuda_test::from_double<T>(rng.normal());
      const T high = cuda_test::from_double<T>(3 * rng.normal());
      const std::uint32_t pair = phi_of_pair<T>(map, low.bits | std::uint32_t{high.bits} << 16);
      ASSERT_EQ(pair & 0xFFFF, phi(map, low).bits);
      ASSERT_EQ(pair >> 16, phi(map, high).bits);
      if (!map.exponential) continue;
      const float y = EluPlusOne{}(static_cast<float>(to_double(low)));
      ASSERT_EQ(pair & 0xFFFF, cuda_test::from_double<T>(static_cast<double>(y)).bits);
    }
  }
}

TYPED_TEST(FeatureMaps, HaveLimits) {
  const auto value = [](const FeatureMap& map, double x) {
    return to_double(phi(map, cuda_test::from_double<TypeParam>(x)));
  };
  EXPECT_EQ(value(FeatureMap::identity(), -kInfinity), -kInfinity);
  EXPECT_EQ(value(FeatureMap::identity(), kInfinity), kInfinity);
  EXPECT_EQ(value(FeatureMap::relu(0), -kInfinity), 0);
  EXPECT_EQ(value(FeatureMap::elu_plus_one(), -kInfinity), 0);
  EXPECT_EQ(value(FeatureMap::elu_plus_one(), 0), 1);
  EXPECT_EQ(value(FeatureMap::elu_plus_one(), kInfinity), kInfinity);
}

}  // namespace
}  // namespace mhla::cuda
