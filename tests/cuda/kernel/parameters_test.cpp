#include "mhla/cuda/kernel/parameters.cuh"

#include <gtest/gtest.h>

namespace mhla::cuda {
namespace {

constexpr Normalization kNone{Denominator::kNone, 0.5f, 1e-3f};
constexpr Normalization kKeySum{Denominator::kKeySum, 0.5f, 0.25f};

// o = scale n, or scale n / (scale d + eps).
static_assert(kNone.factor(8) == 0.5f);
static_assert(kKeySum.factor(8) == 0.5f / 4.25f);
static_assert(Normalization{Denominator::kCrossQuery, 1, 0}.factor(4) == 0.25f);

TEST(Parameters, RowsOfTheMixingMatrixAreAStrideApart) {
  const float numbers[20] = {};
  const MixingArray m{numbers, 5};
  EXPECT_EQ(m.row(0), numbers);
  EXPECT_EQ(m.row(3), numbers + 15);
}

TEST(Parameters, FactorsAreThoseOfTheNormalization) {
  EXPECT_EQ(kNone.factor(-100), 0.5f);
  EXPECT_EQ(kKeySum.factor(0), 2.0f);
}

}  // namespace
}  // namespace mhla::cuda
