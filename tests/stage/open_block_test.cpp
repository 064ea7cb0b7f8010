#include "mhla/stage/open_block.hpp"

#include <gtest/gtest.h>

#include "support/chain.hpp"
#include "support/unit_case.hpp"

namespace mhla::test {
namespace {

template <class A>
class OpenBlock : public testing::Test {};
TYPED_TEST_SUITE(OpenBlock, Accumulators);

template <class A>
Matrix<A> flat(const Matrix<A>& x) {
  return Matrix<A>::Map(x.data(), 1, x.size());
}

/// sum += keys^T values, each element one chain over the keys.
template <class A>
void add_chains(const Matrix<A>& keys, const Matrix<A>& values, Matrix<A>& sum) {
  for (Index i = 0; i < sum.rows(); ++i) {
    for (Index j = 0; j < sum.cols(); ++j) {
      for (Index k = 0; k < keys.rows(); ++k) sum(i, j) = step(keys(k, i), values(k, j), sum(i, j));
    }
  }
}

template <class A>
void expect_taken(Random& rng, Index rows, Index cols) {
  const Index count = rng.integer(0, 10);
  const auto weight = static_cast<A>(rng.uniform(-1, 1));
  const auto keys = rng.matrix<A>(count, rows), values = rng.matrix<A>(count, cols),
             before = rng.matrix<A>(rows, cols), read = rng.matrix<A>(rows, cols);
  Matrix<A> after = before, added = read;
  add_chains(keys, values, after);
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < cols; ++j) {
      added(i, j) = step(weight, after(i, j) - before(i, j), read(i, j));
    }
  }
  const Guarded<A> summary(flat(before)), running(flat(read));
  detail::take_keys<A>(Guarded<A>(keys), Guarded<A>(values), count, weight, rows, cols,
                       summary.data(), running.data());
  summary.expect_nothing_beside("S");
  running.expect_nothing_beside("R");
  ASSERT_TRUE(same_bits<A>(summary.numbers(), flat(after))) << rows << " x " << cols;
  ASSERT_TRUE(same_bits<A>(running.numbers(), flat(added))) << rows << " x " << cols;
}

TYPED_TEST(OpenBlock, SumsAreChainsOverTheKeysAndTheirGainIsAdded) {
  Random rng(1);
  for (Index rows = 0; rows <= 9 && !this->HasFailure(); ++rows) {
    for (Index cols = 0; cols <= 70; cols += rng.integer(1, 4)) {
      expect_taken<TypeParam>(rng, rows, cols);
    }
  }
  for (const Index cols : {64, 255, 256}) expect_taken<TypeParam>(rng, 16, cols);
}

/// Keys come one at a time: with a query that reads, without a query, or as a query without a key.
/// Several keys may also come at once, and all are added to R.
TYPED_TEST(OpenBlock, EveryQueryReadsAllKeysSoFarAndTheSummaryGetsThem) {
  using A = TypeParam;
  for_cases(200, [](Random& rng) {
    const Index d = rng.integer(1, 60), e = rng.integer(1, 70), w = rng.integer(0, 40);
    const auto weight = static_cast<A>(rng.uniform(-1, 1));
    const Matrix<A> start = rng.matrix<A>(d, e), k = rng.matrix<A>(w, d), v = rng.matrix<A>(w, e);
    const Guarded<A> running(flat(start)), keys(k), values(v);
    GuardedArena memory(1 << 17);
    const detail::Summaries<A> summary("S", memory.next(), 1, d, e);
    const detail::OpenBlock<A> block{running.data(), summary.block(0), keys, values, d, e, weight};
    Index count = 0, level = 0;
    while (count < w) {
      const Index taken = count;
      if (rng.chance(0.1)) {
        count += rng.integer(0, std::min<Index>(20, w - count));
        block.take_into_running(taken, level);
        for (Index key = taken; key < count; ++key) {
          for (Index i = 0; i < d; ++i) {
            detail::add_scaled(weight * k(key, i), v.data() + key * e, running.data() + i * e, e);
          }
        }
        level = count;
      } else {
        count += rng.chance(0.8);
        if (rng.chance(0.8)) {
          const Matrix<A> q = rng.matrix<A>(1, d);
          const Guarded<A> output(1, e);
          block.read(q.data(), taken, count, level, output.data());
          const Exact seen(k.topRows(count).eval()), read(v.topRows(count).eval());
          // A key rounds S and R once each, or R twice. Then come the growth, and q with R and with
          // up to 8 keys that R lacks.
          output.expect(Exact(q) * (Exact(start) +
                                    static_cast<long double>(weight) * (seen.transpose() * read)),
                        {2 * count + d + 10});
        }
      }
      block.take(taken, count, level);
    }
    running.expect_nothing_beside("R");
    block.complete_summary(w);
    memory.expect_intact();
    Matrix<A> sum = Matrix<A>::Zero(d, e);
    add_chains(k, v, sum);
    ASSERT_TRUE(same_bits<A>(VectorCase<A>::stored(summary), flat(sum)))
        << d << " x " << e << ", " << w << " keys";
  });
}

/// A first query reads R row by row, in order and once each, after each row is completed.
TYPED_TEST(OpenBlock, AFirstQueryReadsRowsThatAreCompletedForIt) {
  using A = TypeParam;
  for_cases(100, [](Random& rng) {
    const Index d = rng.integer(0, 200), e = rng.integer(0, 300);
    const bool has_key = rng.chance(0.8);
    const Matrix<A> k = rng.matrix<A>(1, d), v = rng.matrix<A>(1, e), q = rng.matrix<A>(1, d);
    const Matrix<A> start = rng.matrix<A>(d, e);
    Matrix<A> completed = Matrix<A>::Constant(d, e, A(NAN));
    const Guarded<A> keys(k), values(v), output(1, e), scratch(1, d);
    const detail::OpenBlock<A> block{completed.data(), {}, keys, values, d, e, A(0.5)};
    Index rows = 0;
    const A score = block.read_first(
        q.data(), has_key, scratch.data(), output.data(), [&](Index begin, Index end) {
          ASSERT_EQ(begin, rows);
          rows = end;
          completed.middleRows(begin, end - begin) = start.middleRows(begin, end - begin);
        });
    ASSERT_EQ(rows, d);
    const long double weight = has_key ? 0.5L : 0;
    const Exact key = Exact(q) * Exact(k).transpose();
    Guarded<A>(Matrix<A>::Constant(1, 1, score)).expect(weight * key, {d + 1});
    output.expect(Exact(q) * Exact(start) + weight * (key * Exact(v)), {2 * d + 3});
  });
}

}  // namespace
}  // namespace mhla::test
