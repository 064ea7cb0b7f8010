#include "mhla/cuda/tile/pieces.cuh"

#include <gtest/gtest.h>

#include <cstdint>

#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

template <class T>
class Pieces : public testing::Test {};
using Types = testing::Types<bfloat16, half>;
TYPED_TEST_SUITE(Pieces, Types);

template <class T>
ptx::Words4 piece(const float (&x)[8]) {
  return {{ptx::pack<T>(x[0], x[1]), ptx::pack<T>(x[2], x[3]), ptx::pack<T>(x[4], x[5]),
           ptx::pack<T>(x[6], x[7])}};
}

constexpr float kFirst[8] = {1, -2, 3, 0.5f, 5, 6, -7, 8};
constexpr float kSecond[8] = {4, 3, 2, 16, -1, 0, 2, 1};

TYPED_TEST(Pieces, NumbersStayInOrder) {
  using T = TypeParam;
  float sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = static_cast<float>(100 * i);
  add_scaled<T>(sums, 2, piece<T>(kFirst));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(sums[i], static_cast<float>(100 * i) + 2 * kFirst[i]);
  EXPECT_EQ(add_product<T>(10, piece<T>(kFirst), piece<T>(kSecond)),
            10 + 4 - 6 + 6 + 8 - 5 - 14 + 8);
  const ptx::Words4 words = rounded<T>(kFirst);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(words.x[i], piece<T>(kFirst).x[i]);
}

TYPED_TEST(Pieces, HaveTwoParts) {
  using T = TypeParam;
  float x[8];
  for (int i = 0; i < 8; ++i) x[i] = 1.0f + static_cast<float>(i) * 0.0137f;
  const ptx::Words4 high = rounded<T>(x);
  const ptx::Words4 rest = rounded_rest<T>(x, high);
  for (int i = 0; i < 8; ++i) {
    const auto of = [&](const ptx::Words4& w) {
      return static_cast<double>(i % 2 == 0 ? ptx::low<T>(w.x[i / 2]) : ptx::high<T>(w.x[i / 2]));
    };
    const double value = static_cast<double>(x[i]);
    EXPECT_EQ(of(high), cuda_test::round_to<T>(value));
    EXPECT_EQ(of(rest), cuda_test::round_to<T>(value - of(high)));
  }
}

TYPED_TEST(Pieces, FeaturesAreOfEveryNumber) {
  using T = TypeParam;
  const ptx::Words4 features = apply<T>(FeatureMap::relu(0.5f), piece<T>(kFirst));
  const float expected[8] = {1.5f, 0.5f, 3.5f, 1, 5.5f, 6.5f, 0.5f, 8.5f};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(features.x[i], piece<T>(expected).x[i]);
}

TEST(Pieces, FloatsKeepTheirBits) {
  const float x[4] = {1, -0.0f, 3e-40f, -2.5f};
  const ptx::Words4 words = four_floats(x);
  EXPECT_EQ(words.x[0], 0x3F800000u);
  EXPECT_EQ(words.x[1], 0x80000000u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(as_float(words.x[i]), x[i]);
}

}  // namespace
}  // namespace mhla::cuda
