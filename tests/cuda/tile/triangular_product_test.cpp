#include "mhla/cuda/tile/triangular_product.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

template <class T>
class NotFinite : public testing::Test {};
using Types = testing::Types<bfloat16, half>;
TYPED_TEST_SUITE(NotFinite, Types);

TYPED_TEST(NotFinite, BitsAreOfInfiniteNumbersAndNaN) {
  using T = TypeParam;
  for (std::uint32_t x = 0; x <= 0xFFFF; ++x) {
    const double value = cuda_test::to_double(T{static_cast<std::uint16_t>(x)});
    const bool special = !std::isfinite(value);
    for (const std::uint32_t other : {0u, 0x8000u, 0x3C00u, 0x7F7Fu, 0x7BFFu}) {
      const bool other_special =
          !std::isfinite(cuda_test::to_double(T{static_cast<std::uint16_t>(other)}));
      const std::uint32_t lower = not_finite_bits<T>(x | other << 16);
      const std::uint32_t upper = not_finite_bits<T>(other | x << 16);
      ASSERT_EQ((lower & 0x8000u) != 0, special) << x;
      ASSERT_EQ((lower & 0x80000000u) != 0, other_special) << x;
      ASSERT_EQ((upper & 0x80000000u) != 0, special) << x;
    }
  }
}

TEST(LowerTriangle, ReplacesWhatIsAboveTheDiagonalByZeros) {
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const Fragment<16> lower = lower_triangle({{~0u, ~0u, ~0u, ~0u}}, lane);
    for (std::uint32_t word = 0; word < 4; ++word) {
      const std::uint32_t row = lane / 4 + word % 2 * 8, column = lane % 4 * 2 + word / 2 * 8;
      EXPECT_EQ(lower.x[word] & 0xFFFFu, column <= row ? 0xFFFFu : 0) << lane << " " << word;
      EXPECT_EQ(lower.x[word] >> 16, column + 1 <= row ? 0xFFFFu : 0) << lane << " " << word;
    }
  }
}

}  // namespace
}  // namespace mhla::cuda
