#include "mhla/stage/read_out.hpp"

#include <gtest/gtest.h>

#include "contract/normalizer.hpp"
#include "support/unit_case.hpp"

namespace mhla::test {
namespace {

using detail::kStripTokens;

template <class A>
class ReadOut : public testing::Test {};
TYPED_TEST_SUITE(ReadOut, Accumulators);

TYPED_TEST(ReadOut, IsTheMixtureReadByEveryQueryOverItsDenominator) {
  for_cases(150, expect_read_out<VectorCase<TypeParam>>);
}

TYPED_TEST(ReadOut, QueriesAreScaledFeatures) {
  using A = TypeParam;
  Random rng(3);
  const Matrix<A> q = rng.matrix<A>(9, 21);
  const Index tokens[] = {8, 0, 5};
  for (const A factor : {A(1), A(0.3), A(0)}) {
    std::vector<A> raw(21);
    const Guarded<A> queries(3, 21);
    detail::gather_queries<A, A>(MatrixView<const A>(q), tokens, 3, Relu{0.5}, factor, raw.data(),
                                 queries);
    Matrix<A> features(3, 21);
    for (Index s = 0; s < 3; ++s) {
      features.row(s) = q.row(tokens[s]).cwiseMax(A(0)).array() + A(0.5);
    }
    queries.expect(static_cast<long double>(factor) * Exact(features), {1});
  }
}

TYPED_TEST(ReadOut, AdjointGivesSumsTheSlopeOfTheDenominator) {
  using A = TypeParam;
  for (const Index count : {Index{0}, Index{1}, Index{9}, kStripTokens}) {
    Random rng(static_cast<std::uint64_t>(count));
    const auto sums = rng.matrix<A>(1, count, 0, 3), products = rng.matrix<A>(1, count);
    const A scale = A(1.7);
    const Guarded<A> scratch(sums), factors(1, count), slopes(1, count), dsums(1, count);
    detail::gradient_factors(SquarePlusOne{}, scratch.data(), count, scale, factors.data(),
                             slopes.data());
    detail::read_out_adjoint_sums(products.data(), slopes.data(), count, dsums.data());
    Exact factor = Exact::zero(1, count), dsum = factor;
    for (Index s = 0; s < count; ++s) {
      const long double r = static_cast<long double>(scale) * sums(0, s), den = r * r + 1;
      factor.value(0, s) = scale / den;
      dsum.value(0, s) = -scale * 2 * r * products(0, s) / den;
    }
    factor.size = factor.value.cwiseAbs();
    dsum.size = dsum.value.cwiseAbs();
    factors.expect(factor, {6}, "factors");
    dsums.expect(dsum, {10}, "dr");
  }
}

}  // namespace
}  // namespace mhla::test
