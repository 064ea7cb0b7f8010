// The adjoint functions of mhla/stage/read_out.hpp: exact on whole numbers.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/stage/read_out.hpp"
#include "support/exact.hpp"

namespace mhla {
namespace {

using test::Memory;

using detail::kStripTokens;
using detail::RightOperand;
using detail::Rows;

/// Numbers of a strip, behind which all is NaN.
template <class A>
std::vector<A> unwritten_strip() {
  return std::vector<A>(kStripTokens + 1, std::numeric_limits<A>::quiet_NaN());
}

template <class A>
class ReadOutAdjoint : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(ReadOutAdjoint, Accumulators);

TYPED_TEST(ReadOutAdjoint, QueriesGetTheMixtureTimesTheirGradient) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const Index count = rng.integer(0, kStripTokens), d = rng.integer(0, 40),
                e = rng.integer(0, 40);
    const auto dn = test::integers<TypeParam>(rng, count, e);
    const auto mixture = test::integers<TypeParam>(rng, d, e);
    const Matrix<TypeParam> transposed = mixture.transpose();
    Memory memory(200000);
    const Rows<TypeParam> dqueries("f", memory.arena, count + 1, d);  // NaN is not added to
    detail::read_out_adjoint_queries(test::rows_of(memory, dn), count, d, e,
                                     RightOperand<TypeParam>{transposed.data(), d}, dqueries);
    EXPECT_EQ(test::matrix_of(dqueries, count, d), (dn * transposed).eval());
    test::expect_nothing_beside(dqueries, count + 1, count, d);
  }
}

TYPED_TEST(ReadOutAdjoint, FactorsAreScaleOverScaledSumsPlusEps) {
  test::Random rng(1);
  for (Index count = 0; count <= kStripTokens; ++count) {
    const auto sums = test::integers<TypeParam>(rng, 1, count, 1000);
    const auto scale = static_cast<TypeParam>(rng.integer(1, 9)), eps = TypeParam(0.25);
    auto factors = unwritten_strip<TypeParam>();
    detail::gradient_factors(sums.data(), count, scale, eps, factors.data());
    for (Index s = 0; s <= kStripTokens; ++s) {
      const auto i = static_cast<std::size_t>(s);
      if (s < count) {
        EXPECT_EQ(factors[i], scale / (scale * sums(0, s) + eps));  // the sum exact, rounded once
      } else {
        EXPECT_TRUE(std::isnan(factors[i]));
      }
    }
  }
}

TYPED_TEST(ReadOutAdjoint, SumsGetTheirProductsTimesTheFactorsNegated) {
  test::Random rng(2);
  for (Index count = 0; count <= kStripTokens; ++count) {
    const auto products = rng.matrix<TypeParam>(1, count),
               factors = rng.matrix<TypeParam>(1, count);
    auto dsums = unwritten_strip<TypeParam>();
    detail::read_out_adjoint_sums(products.data(), factors.data(), count, dsums.data());
    for (Index s = 0; s <= kStripTokens; ++s) {
      const TypeParam got = dsums[static_cast<std::size_t>(s)];
      if (s < count) {
        EXPECT_EQ(got, -(factors(0, s) * products(0, s)));
      } else {
        EXPECT_TRUE(std::isnan(got));
      }
    }
  }
}

}  // namespace
}  // namespace mhla
