#include "mhla/stage/intra_block.hpp"

#include <gtest/gtest.h>

#include "support/stage_case.hpp"

namespace mhla::test {
namespace {

using detail::IntraBlockAdjoint;
using detail::kStripTokens;

/// A strip of kept keys and some queries in slots around them, one row each. Keys that no query
/// sees are NaN.
template <class A>
struct Block {
  Index tokens, d, e;
  A weight;
  std::vector<Index> query_slots, key_slots;
  Matrix<A> q, k, v;
  Matrix<A> sees;  // 1 where a query sees a key   // [queries, keys]
  Index strip;     // largest number of queries at a time

  explicit Block(Random& rng)
      : tokens(rng.chance(0.3) ? kStripTokens : rng.integer(0, 200)),
        d(rng.integer(1, 24)),
        e(rng.integer(0, 40)),
        weight(static_cast<A>(rng.uniform(-1, 2))),
        query_slots(some_of(rng, tokens)),
        key_slots(some_of(rng, tokens)),
        strip(rng.chance(0.5) ? kStripTokens : rng.integer(1, kStripTokens)) {
    if (keys() > kStripTokens) key_slots.resize(kStripTokens);
    q = rng.matrix<A>(queries(), d);
    k = rng.matrix<A>(keys(), d);
    v = rng.matrix<A>(keys(), e);
    sees = Matrix<A>::Zero(queries(), keys());
    for (Index t = 0; t < queries(); ++t) sees.row(t).head(visible(t)).setOnes();
  }
  Index queries() const { return std::ssize(query_slots); }
  Index keys() const { return std::ssize(key_slots); }
  Index visible(Index query) const {
    const Index slot = query_slots[static_cast<std::size_t>(query)];
    return std::count_if(key_slots.begin(), key_slots.end(), [=](Index s) { return s <= slot; });
  }
  /// Rows of a strip; rows that no query sees are NaN.
  Guarded<A> strip_of(Matrix<A> x) const {
    const Index seen = queries() == 0 ? 0 : visible(queries() - 1);
    x.bottomRows(keys() - seen).setConstant(A(NAN));
    return Guarded<A>(x, kStripTokens);
  }
  /// Calls f(first query, count) for the queries, at most `strip` at a time.
  template <class F>
  void for_queries(F&& f) const {
    for (Index begin = 0; begin < queries(); begin += strip) {
      f(begin, std::min(strip, queries() - begin));
    }
  }
};

template <class A>
class IntraBlock : public testing::Test {};
TYPED_TEST_SUITE(IntraBlock, Accumulators);

TYPED_TEST(IntraBlock, AdjointIsTheDefinitionForEveryPairThatSeesEachOther) {
  using A = TypeParam;
  for_cases(80, [](Random& rng) {
    const Block<A> x(rng);
    const auto dn = rng.matrix<A>(x.queries(), x.e), dden = rng.matrix<A>(1, x.queries());
    const auto dq_before = rng.matrix<A>(x.queries(), x.d),
               dk_before = rng.matrix<A>(x.keys(), x.d), dv_before = rng.matrix<A>(x.keys(), x.e);
    const bool divides = rng.chance(0.7);
    const Exact ones(Matrix<A>::Ones(1, x.keys()).eval()), sees(x.sees);
    const Exact p = (Exact(x.q) * Exact(x.k).transpose()).times(sees);
    const Exact dnv = (Exact(dn) * Exact(x.v).transpose()).times(sees);
    const Exact products = p.times(dnv);
    Exact pairs = dnv;  // dn . v + dden
    if (divides) pairs = pairs + (Exact(dden).transpose() * ones).times(sees);
    const long double weight = x.weight;
    const Exact dp = weight * pairs;

    GuardedArena memory(1 << 22);
    IntraBlockAdjoint<A> block("f", memory.next(), x.d, x.e);
    const Guarded<A> dk(dk_before), dv(dv_before), score_sums(1, x.queries()),
        product_sums(1, x.queries()), dq(dq_before);
    Matrix<A> dweight = Matrix<A>::Zero(1, 1);
    block.set(x.strip_of(x.k), x.strip_of(x.v), x.key_slots.data(), x.keys());
    x.for_queries([&](Index begin, Index count) {
      const Guarded<A> queries(Matrix<A>(x.q.middleRows(begin, count))),
          gradients(Matrix<A>(dn.middleRows(begin, count)));
      block.score(queries, x.query_slots.data() + begin, count);
      block.multiply_values(gradients);
      std::copy_n(block.score_sums(), count, score_sums.data() + begin);
      std::copy_n(block.product_sums(), count, product_sums.data() + begin);
      dweight(0, 0) += block.finish(x.weight, divides ? dden.data() + begin : nullptr);
      block.add_queries(dq.rows().below(begin));
      block.add_keys(queries, dk);
      block.add_values(x.weight, gradients, dv);
    });
    memory.expect_intact();
    // Chains of a term: D roundings in a score and E in a product, one or two for dden and the
    // weight, one per key or query that is added, and those of strips.
    const Index queries = x.queries(), keys = x.keys();
    score_sums.expect(ones * p.transpose(), {x.d + keys}, "sums of scores");
    product_sums.expect(ones * products.transpose(), {x.d + x.e + keys}, "sums of products");
    dq.expect(dp * Exact(x.k) + dq_before, {x.e + keys + 3}, "dq");
    dk.expect(dp.transpose() * Exact(x.q) + dk_before, {x.e + queries + 3}, "dk");
    dv.expect(weight * (p.transpose() * Exact(dn)) + dv_before, {x.d + queries + 2}, "dv");
    const Exact all = ones * p.times(pairs).transpose();
    expect_within(dweight, all * Exact(Matrix<A>::Ones(queries, 1).eval()),
                  {x.d + x.e + keys + 2 + 2 * queries}, "dweight");
  });
}

}  // namespace
}  // namespace mhla::test
