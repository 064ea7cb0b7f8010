#include "mhla/kernel/inner_products.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/outputs.hpp"
#include "support/placed.hpp"

namespace mhla {
namespace {

using test::kNaN;

template <class A>
class InnerProducts : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(InnerProducts, Accumulators);

/// Rows of `depth` numbers, with NaN between them.
template <class A>
Matrix<A> rows_apart(test::Random& rng, Index rows, Index depth) {
  Matrix<A> m = Matrix<A>::Constant(rows, depth + rng.integer(0, 5), kNaN<A>);
  m.leftCols(depth) = rng.matrix<A>(rows, depth);
  return m;
}

template <class A>
void expect_bits_of_dot(test::Random& rng, Index rows, Index cols, Index depth) {
  Matrix<A> a = rows_apart<A>(rng, rows, depth);
  const Matrix<A> b = rows_apart<A>(rng, cols, depth);
  if (rows > 0 && depth > 0 && rng.chance(0.2)) a(rows / 2, rng.integer(0, depth - 1)) = kNaN<A>;
  Matrix<A> c = rng.matrix<A>(rows, cols + rng.integer(0, 3)), expected = c;
  for (Index r = 0; r < rows; ++r) {
    for (Index j = 0; j < cols; ++j) {
      expected(r, j) += detail::dot(a.row(r).data(), b.row(j).data(), depth);
    }
  }
  detail::add_inner_products<A>({a.data(), a.cols()}, rows, {b.data(), b.cols()}, cols, depth,
                                {c.data(), c.cols()});
  for (Index i = 0; i < c.size(); ++i) {
    ASSERT_TRUE(test::same_number(c.data()[i], expected.data()[i]))
        << rows << " x " << cols << " of depth " << depth << ": " << i;
  }
}

TYPED_TEST(InnerProducts, EveryElementGrowsByTheBitsOfItsDotProduct) {
  test::Random rng(1);
  for (Index rows = 0; rows <= 2 * detail::kInnerRows + 1; ++rows) {
    for (Index cols = 0; cols <= 2 * detail::kInnerCols + 1; ++cols) {
      expect_bits_of_dot<TypeParam>(rng, rows, cols, rng.integer(0, 300));
    }
  }
  for (Index depth = 0; depth <= 70; ++depth) {
    expect_bits_of_dot<TypeParam>(rng, rng.integer(1, 20), rng.integer(1, 7), depth);
  }
}

}  // namespace
}  // namespace mhla
