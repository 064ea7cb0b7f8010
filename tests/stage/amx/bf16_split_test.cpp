#include "mhla/stage/amx/bf16_split.hpp"

#include <gtest/gtest.h>

#include "support/amx_case.hpp"

namespace mhla::test {
namespace {

using detail::Bf16x2;
using detail::high_bits;
using detail::kTileColumns;
using detail::low_bits;
using detail::number_of;

class Bfloat16Pair : public AmxTest {};

float float_of(std::uint64_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}

TEST_F(Bfloat16Pair, FiniteNumbersComeApartWithinTheBound) {
  Random rng(1);
  for (Index i = 0; i < 500'000; ++i) {
    float x = float_of(rng.bits());
    if (i % 8 == 0) x = float_of((rng.bits() & 0x8000FFFFu) | 0x7F7F0000u);  // the largest numbers
    if (!std::isfinite(x)) continue;
    const float high = number_of(high_bits(x)), low = number_of(low_bits(x, high_bits(x)));
    ASSERT_TRUE(std::isfinite(high) && std::isfinite(low)) << x;
    const double size = std::abs(double(x)), slack = 1 + 0x1p-8;
    ASSERT_LE(std::abs(double(low)), 0x1p-8 * slack * size) << x;
    ASSERT_LE(std::abs(double(x) - high - low), 0x1p-17 * slack * size + 0x1p-134) << x;
    const double rounded = static_cast<float>(Eigen::bfloat16(x));
    if (std::isfinite(rounded)) {
      ASSERT_EQ(rounded, high) << x;
    }
  }
}

TEST_F(Bfloat16Pair, Bfloat16NumbersAreTheirHighParts) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = number_of(bits);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(number_of(high_bits(x))));
    } else {
      EXPECT_EQ(high_bits(x), bits);
    }
    EXPECT_EQ(low_bits(x, high_bits(x)), 0u);
  }
}

TEST_F(Bfloat16Pair, InfinityAndNanHaveNoLowPart) {
  for (const std::uint32_t bits :
       {0x7F800000u, 0xFF800000u, 0x7F800001u, 0x7FC00000u, 0xFFFFFFFFu}) {
    const float x = float_of(bits);
    const std::uint32_t high = high_bits(x);
    EXPECT_EQ(std::isnan(x), std::isnan(number_of(high)));
    EXPECT_EQ(std::isinf(x), std::isinf(number_of(high)));
    EXPECT_EQ(std::signbit(x), std::signbit(number_of(high)));
    EXPECT_EQ(low_bits(x, high), 0u);
  }
}

TEST_F(Bfloat16Pair, RowsAreSplitPairByPair) {
  Random rng(2);
  const Matrix<float> x = rng.matrix<float>(2, kTileColumns);
  Bf16x2 high[kTileColumns], low[kTileColumns];
  EXPECT_NE(detail::split_row(&x(0, 0), &x(1, 0), high, low), 0u);
  for (Index j = 0; j < kTileColumns; ++j) {
    EXPECT_EQ(high[j] & 0xFFFFu, high_bits(x(0, j)));
    EXPECT_EQ(high[j] >> 16, high_bits(x(1, j)));
    EXPECT_EQ(low[j] & 0xFFFFu, low_bits(x(0, j), high_bits(x(0, j))));
    EXPECT_EQ(low[j] >> 16, low_bits(x(1, j), high_bits(x(1, j))));
    const detail::Float32x2 sums = detail::joined(high[j], low[j]);
    EXPECT_NEAR(sums.first, x(0, j), 0x1p-16 * std::abs(x(0, j)));
    EXPECT_NEAR(sums.second, x(1, j), 0x1p-16 * std::abs(x(1, j)));
  }
  for (Index j = 0; j < kTileColumns; ++j) {  // a single nonzero low part, anywhere, is noticed
    float first[kTileColumns] = {}, second[kTileColumns] = {};
    EXPECT_EQ(detail::split_row(first, second, high, low), 0u);
    first[j] = 1.01f;
    EXPECT_NE(detail::split_row(first, second, high, low), 0u);
    EXPECT_NE(detail::split_row(second, first, high, low), 0u);
  }
}

TEST_F(Bfloat16Pair, OneNumberThatIsNotFiniteIsFound) {
  float x[40] = {};
  x[3] = std::numeric_limits<float>::max();
  for (Index count : {0, 1, 17, 40}) {
    EXPECT_TRUE(detail::all_finite(x, count));
    for (Index j = 0; j < count; ++j) {
      const float before = x[j];
      for (const float bad : {INFINITY, -INFINITY, NAN}) {
        x[j] = bad;
        EXPECT_FALSE(detail::all_finite(x, count));
        EXPECT_TRUE(detail::all_finite(x, j));
      }
      x[j] = before;
    }
  }
}

}  // namespace
}  // namespace mhla::test
