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

}  // namespace
}  // namespace mhla::cuda
