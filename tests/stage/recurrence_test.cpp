#include "mhla/stage/recurrence.hpp"

#include <gtest/gtest.h>

#include "support/chain.hpp"
#include "support/stage_case.hpp"

namespace mhla::test {
namespace {

using detail::Recurrence;
using detail::Rows;

template <class A>
class RecurrenceOf : public testing::Test {};
TYPED_TEST_SUITE(RecurrenceOf, Accumulators);

/// Some tokens, and their results one token after another.
template <class A>
struct Tokens {
  Matrix<A> queries, keys, values, factors, outputs, sums;

  Tokens(Random& rng, Index n, Index d, Index e)
      : queries(rng.matrix<A>(n, d)),
        keys(rng.matrix<A>(n, d)),
        values(rng.matrix<A>(n, e)),
        factors(rng.matrix<A>(1, n)),
        outputs(n, e),
        sums(1, n) {
    Matrix<A> s = Matrix<A>::Zero(d, e);
    for (Index t = 0; t < n; ++t) {
      for (Index j = 0; j < e; ++j) {
        A sum = 0;
        for (Index i = 0; i < d; ++i) {
          s(i, j) = step(keys(t, i), values(t, j), s(i, j));
          sum = step(queries(t, i), s(i, j), sum);
        }
        outputs(t, j) = factors(0, t) * sum;
      }
    }
  }
};

TYPED_TEST(RecurrenceOf, HasTheBitsOfOneTokenAfterAnotherHoweverTheyAreSplit) {
  using A = TypeParam;
  for_cases(150, [](Random& rng) {
    const Index n = rng.integer(0, 40), d = rng.integer(0, 70), e = rng.integer(0, 70);
    const Index heads = rng.integer(1, 3), head = rng.integer(0, heads - 1);
    const Tokens<A> tokens(rng, n, d, e);
    const Index padded = Recurrence<A>::padded(e);
    GuardedArena memory(1 << 17);
    const Recurrence<A> recurrence("test", memory.next(), heads, d, e);
    recurrence.clear();
    const Guarded<A> queries(tokens.queries), keys(tokens.keys), outputs(n, padded);
    Matrix<A> padded_values = Matrix<A>::Zero(n, padded);
    padded_values.leftCols(e) = tokens.values;
    const Guarded<A> values(padded_values);
    for (Index begin = 0, count; begin < n; begin += count) {
      count = rng.integer(1, n - begin);
      detail::Prefetch nothing(1);
      recurrence.advance(
          head,
          {Rows<A>(queries).below(begin), Rows<A>(keys).below(begin), Rows<A>(values).below(begin),
           Rows<A>(outputs).below(begin), tokens.factors.data() + begin, count},
          nothing);
    }
    memory.expect_intact();
    outputs.expect_nothing_beside("o");
    ASSERT_TRUE(same_bits<A>(outputs.numbers().leftCols(e), tokens.outputs));
  });
}

TYPED_TEST(RecurrenceOf, KeySumsGrowTokenByToken) {
  using A = TypeParam;
  for_cases(150, [](Random& rng) {
    const Index n = rng.integer(0, 30), d = rng.integer(0, 70);
    const Matrix<A> queries = rng.matrix<A>(n, d), keys = rng.matrix<A>(n, d),
                    before = rng.matrix<A>(1, d);
    const Guarded<A> q(queries), k(keys), z(before), sums(1, n);
    detail::advance_key_sum<A>(q.rows(), k.rows(), n, d, z.data(), sums.data());
    Exact total(before), expected = Exact::zero(1, n);
    for (Index t = 0; t < n; ++t) {
      total = total + Exact(Matrix<A>(keys.row(t)));
      const Exact product = Exact(Matrix<A>(queries.row(t))) * total.transpose();
      expected.value(0, t) = product.value(0, 0);
      expected.size(0, t) = product.size(0, 0);
    }
    z.expect(total, {n});
    sums.expect(expected, {n + d});
  });
}

}  // namespace
}  // namespace mhla::test
