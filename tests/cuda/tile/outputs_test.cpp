#include "mhla/cuda/tile/outputs.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

template <class T>
double low_of(std::uint32_t pair) {
  return static_cast<double>(ptx::low<T>(pair));
}
template <class T>
double high_of(std::uint32_t pair) {
  return static_cast<double>(ptx::high<T>(pair));
}

/// Bound of |high + low - x| in the header.
template <class T>
double bound(double x) {
  return std::is_same_v<T, bfloat16> ? 0x1p-17 * std::abs(x) : 0x1p-23 * std::abs(x) + 0x1p-25;
}

template <class T>
class AllParts : public testing::Test {};
using Types = testing::Types<bfloat16, half>;
TYPED_TEST_SUITE(AllParts, Types);

TYPED_TEST(AllParts, SumsAreWithinThePromise) {
  using T = TypeParam;
  test::Random rng(1);
  for (int i = 0; i < 100000; ++i) {
    const auto draw = [&] {
      return static_cast<float>(rng.normal() * std::exp2(rng.uniform(-12, 12)));
    };
    const float x = draw(), y = draw();
    const Parts parts = parts_of<T>(x, y);
    const double dx = static_cast<double>(x), dy = static_cast<double>(y);
    ASSERT_EQ(low_of<T>(parts.high), cuda_test::round_to<T>(dx));
    ASSERT_EQ(high_of<T>(parts.high), cuda_test::round_to<T>(dy));
    ASSERT_NEAR(low_of<T>(parts.high) + low_of<T>(parts.low), dx, bound<T>(dx)) << x;
    ASSERT_NEAR(high_of<T>(parts.high) + high_of<T>(parts.low), dy, bound<T>(dy)) << y;
  }
}

TYPED_TEST(AllParts, ExactNumbersHaveNoRest) {
  using T = TypeParam;
  const Parts parts = parts_of<T>(-1.5f, 96.0f);
  EXPECT_EQ(parts.high, ptx::pack<T>(-1.5f, 96.0f));
  EXPECT_EQ(parts.low, 0u);
}

TYPED_TEST(AllParts, OverflowShowsInTheSum) {
  using T = TypeParam;
  const float large = std::is_same_v<T, half> ? 70000.0f : 3.4e38f;
  const Parts parts = parts_of<T>(large, -large);
  EXPECT_FALSE(std::isfinite(low_of<T>(parts.low)));
  EXPECT_FALSE(std::isfinite(high_of<T>(parts.low)));
}

TYPED_TEST(AllParts, RestOfSumsIsTheLowPartBeforeItsRounding) {
  using T = TypeParam;
  test::Random rng(2);
  for (int i = 0; i < 2000; ++i) {
    float sums[3][4], before[3][4];
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) sums[j][k] = before[j][k] = static_cast<float>(rng.normal());
    }
    keep_rest<T>(sums);
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 4; ++k) {
        const double x = static_cast<double>(before[j][k]);
        ASSERT_EQ(static_cast<double>(sums[j][k]), x - cuda_test::round_to<T>(x));
      }
    }
  }
}

}  // namespace
}  // namespace mhla::cuda
