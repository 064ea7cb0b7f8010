#include "mhla/kernel/transpose.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "mhla/core/workspace.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

/// Random numbers in exactly the memory they need.
template <class A>
std::vector<A> numbers(test::Random& rng, Index count) {
  std::vector<A> all(static_cast<std::size_t>(count));
  for (A& x : all) x = static_cast<A>(rng.uniform(-1, 1));
  return all;
}

template <class A>
class Transpose : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(Transpose, Accumulators);

TYPED_TEST(Transpose, IsTheDefinitionAndWritesNothingElse) {
  constexpr Index kLanes = Eigen::internal::packet_traits<TypeParam>::size;
  test::Random rng(1);
  for (Index rows = 0; rows <= 70; ++rows) {
    for (Index cols = 0; cols <= 70; ++cols) {
      const Index touched = detail::round_up(rows, kLanes);  // columns of y
      const Index x_stride = cols + rng.integer(0, 3), y_stride = touched + rng.integer(0, 3);
      const Index before = rng.integer(0, 5), behind = rng.integer(0, 5);
      const auto factor = static_cast<TypeParam>(rng.chance(0.3) ? 1 : rng.uniform(-2, 2));
      const auto x = numbers<TypeParam>(rng, before + touched * x_stride);
      auto y = numbers<TypeParam>(rng, before + cols * y_stride + behind);
      auto expected = y;
      for (Index r = 0; r < touched; ++r) {
        for (Index c = 0; c < cols; ++c) {
          expected[static_cast<std::size_t>(before + c * y_stride + r)] =
              factor * x[static_cast<std::size_t>(before + r * x_stride + c)];
        }
      }
      detail::transpose_scaled(factor, x.data() + before, x_stride, rows, cols, y.data() + before,
                               y_stride);
      ASSERT_EQ(y, expected) << rows << " x " << cols;
    }
  }
}

TYPED_TEST(Transpose, ByOneTwiceIsACopy) {
  test::Random rng(2);
  const Index rows = 64, cols = 128;
  const auto x = numbers<TypeParam>(rng, rows * cols);
  auto y = numbers<TypeParam>(rng, rows * cols), z = numbers<TypeParam>(rng, rows * cols);
  detail::transpose_scaled(TypeParam(1), x.data(), cols, rows, cols, y.data(), rows);
  detail::transpose_scaled(TypeParam(1), y.data(), rows, cols, rows, z.data(), cols);
  EXPECT_EQ(z, x);
}

}  // namespace
}  // namespace mhla
