#include "mhla/kernel/transpose.hpp"

#include <gtest/gtest.h>

#include "mhla/core/workspace.hpp"
#include "support/placed.hpp"

namespace mhla {
namespace {

template <class A>
class Transpose : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(Transpose, Accumulators);

TYPED_TEST(Transpose, IsTheDefinitionAndReadsAndWritesNothingElse) {
  using A = TypeParam;
  constexpr Index kLanes = Eigen::internal::packet_traits<A>::size;
  test::Random rng(1);
  for (Index rows = 0; rows <= 70; ++rows) {
    for (Index cols = 0; cols <= 70; cols += cols < 20 ? 1 : 7) {
      const Index touched = detail::round_up(rows, kLanes);  // columns of y
      Matrix<A> x = Matrix<A>::Constant(touched, cols + rng.integer(0, 3), test::kNaN<A>);
      x.leftCols(cols) = rng.matrix<A>(touched, cols);
      Matrix<A> y = rng.matrix<A>(cols, touched + rng.integer(0, 3)), expected = y;
      const auto factor = static_cast<A>(rng.chance(0.3) ? 1 : rng.uniform(-2, 2));
      expected.leftCols(touched) = factor * x.leftCols(cols).transpose();
      detail::transpose_scaled(factor, x.data(), x.cols(), rows, cols, y.data(), y.cols());
      ASSERT_EQ(y, expected) << rows << " x " << cols;
    }
  }
}

}  // namespace
}  // namespace mhla
