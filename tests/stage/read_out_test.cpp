#include "mhla/stage/read_out.hpp"

#include <gtest/gtest.h>

#include "mhla/policy/normalizer.hpp"
#include "stage/unit_case.hpp"

namespace mhla::test {
namespace {

using detail::kStripTokens;

template <class A>
class ReadOut : public testing::Test {};
TYPED_TEST_SUITE(ReadOut, Accumulators);

TYPED_TEST(ReadOut, IsTheMixtureReadByEveryQueryOverItsDenominator) {
  for_cases(150, expect_read_out<VectorCase<TypeParam>>);
}

/// Whole numbers, whose sums are exact.
TYPED_TEST(ReadOut, EveryDenominatorDividesAsTheFormulaSays) {
  using A = TypeParam;
  using Limits = std::numeric_limits<A>;
  const A denominators[] = {0,  Limits::denorm_min(), 9 * Limits::denorm_min(), Limits::max(),
                            -3, -Limits::infinity(),  Limits::quiet_NaN(),      -Limits::max() / 3};
  constexpr Index kCount = 8, kCols = 19;
  Matrix<A> q(kCount, 2), x(2, kCols), out(kCount, kCols);
  for (Index t = 0; t < kCount; ++t) q.row(t) << static_cast<A>(t % 3), A(1);
  for (Index j = 0; j < kCols; ++j) x.col(j) << static_cast<A>(j), static_cast<A>(j % 2 - 1);
  Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic> scattered(kCount, kCols);
  Memory memory(1 << 17);
  const detail::QueryScratch<A> scratch("f", memory.arena, 2, 2, 0, kCols);
  Index tokens[kCount];
  for (Index t = 0; t < kCount; ++t) {
    tokens[t] = t;
    scratch.denominators[t] = denominators[t];
    std::copy_n(&q(t, 0), 2, scratch.queries.row(t));
  }
  const detail::Mixtures<A> mixture(x.data(), 2, kCols);
  detail::Prefetch next;
  detail::write_mixture(scratch, tokens, kCount, mixture, 0, next, MatrixView<A>(out));
  detail::write_mixture(scratch, tokens, kCount, mixture, 0, next, MatrixView<A>(scattered));
  const Matrix<A> sums = q * x;
  for (Index t = 0; t < kCount; ++t) {
    for (Index j = 0; j < kCols; ++j) {
      const A expected = t == 4 ? sums(t, j) * (A(1) / A(-3)) : sums(t, j) / denominators[t];
      for (const A got : {out(t, j), scattered(t, j)}) {
        EXPECT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected)))
            << sums(t, j) << " / " << denominators[t] << " = " << got;
      }
    }
  }
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

TYPED_TEST(ReadOut, AdjointGivesQueriesTheMixtureTimesTheirGradient) {
  using A = TypeParam;
  for_cases(100, [](Random& rng) {
    const Index count = rng.integer(0, kStripTokens), d = rng.integer(0, 40),
                e = rng.integer(0, 40);
    const auto dn = rng.matrix<A>(count, e), transposed = rng.matrix<A>(e, d);
    const Guarded<A> dqueries(count, d);
    detail::read_out_adjoint_queries<A>(Guarded<A>(dn), count, d, e, Guarded<A>(transposed),
                                        dqueries);
    dqueries.expect(Exact(dn) * Exact(transposed), {e});
  });
}

/// den(r) = r^2 + 1.
struct OnePlusSquare {
  static constexpr WeightSums sums() { return WeightSums::kOwn; }
  template <class A>
  void denominators(const A* r, Index count, A* den) const {
    for (Index t = 0; t < count; ++t) den[t] = r[t] * r[t] + 1;
  }
  template <class A>
  void slopes(const A* r, Index count, A* slope) const {
    for (Index t = 0; t < count; ++t) slope[t] = 2 * r[t];
  }
};

TYPED_TEST(ReadOut, AdjointGivesSumsTheSlopeOfTheDenominator) {
  using A = TypeParam;
  for (const Index count : {Index{0}, Index{1}, Index{9}, kStripTokens}) {
    Random rng(static_cast<std::uint64_t>(count));
    const auto sums = rng.matrix<A>(1, count, 0, 3), products = rng.matrix<A>(1, count);
    const A scale = A(1.7);
    const Guarded<A> scratch(sums), factors(1, count), slopes(1, count), dsums(1, count);
    detail::gradient_factors(OnePlusSquare{}, scratch.data(), count, scale, factors.data(),
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

TEST(QueryScratch, TheDenominatorReadsTheSameQueriesUnlessItHasItsOwn) {
  Memory memory(400000);
  const detail::QueryScratch<double> same("f", memory.arena, 4, 4, 0, 6);
  EXPECT_EQ(same.normalizer_queries.data, same.queries.data);
  const detail::QueryScratch<double> own("f", memory.arena, 4, 4, 5, 6);
  EXPECT_NE(own.normalizer_queries.data, own.queries.data);
}

}  // namespace
}  // namespace mhla::test
