#include "mhla/stage/streaming_product.hpp"

#include <gtest/gtest.h>

#include "stage/stage_case.hpp"
#include "support/chain.hpp"

namespace mhla::test {
namespace {

using detail::kFoldedKeys;
using detail::Turns;

template <class A>
class StreamingProduct : public testing::Test {};
TYPED_TEST_SUITE(StreamingProduct, Accumulators);

/// R lies in rows of E numbers, one behind the other. Keys are NaN beside the rows of R that take
/// them in.
template <class A>
void expect_pass(Random& rng, Index d, Index e) {
  const Index begin = rng.integer(0, d), end = rng.integer(begin, d);
  const auto start = rng.matrix<A>(d, e), values = rng.matrix<A>(kFoldedKeys, e),
             query = rng.matrix<A>(1, d);
  Matrix<A> keys = rng.matrix<A>(kFoldedKeys, d), updated = start, taken = keys;
  for (Index i = 0; i < d; ++i) {
    if (i < begin || i >= end) {
      keys.col(i).setConstant(A(NAN));
      taken.col(i).setZero();
    }
    for (Index j = 0; j < e && i >= begin && i < end; ++j) {
      for (Index f = 0; f < kFoldedKeys; ++f) {
        updated(i, j) = step(keys(f, i), values(f, j), updated(i, j));
      }
    }
  }
  const Guarded<A> running(Matrix<A>(Matrix<A>::Map(start.data(), 1, d * e))), output(1, e);
  detail::fold_and_read<A>(running.data(), Guarded<A>(keys), Guarded<A>(values), query.data(), d,
                           begin, end, e, output.data());
  running.expect_nothing_beside("R");
  ASSERT_TRUE(same_bits<A>(Matrix<A>::Map(running.data(), d, e), updated));
  // The products with both keys, and the chain over the rows of R.
  output.expect(Exact(query) * (Exact(start) + Exact(taken).transpose() * Exact(values)),
                {kFoldedKeys + 1 + d});
}

TYPED_TEST(StreamingProduct, UpdatesItsRowsAndReadsAllOfThem) {
  Random rng(1);
  for (Index d = 0; d <= 70 && !this->HasFailure(); d += rng.integer(1, 4)) {
    for (Index e = 0; e <= 70; e += rng.integer(1, 4)) expect_pass<TypeParam>(rng, d, e);
  }
  for (const Index e : {64, 255, 256}) expect_pass<TypeParam>(rng, 129, e);
}

/// Keys come one at a time, some with a query that reads, some without one, some queries without a
/// key; in between all of R is brought to the same keys.
TYPED_TEST(StreamingProduct, EveryQueryReadsAllKeysSoFar) {
  using A = TypeParam;
  for_cases(200, [](Random& rng) {
    const Index d = rng.integer(1, 40), e = rng.integer(1, 70), w = rng.integer(1, 24);
    const auto weight = static_cast<A>(rng.uniform(-1, 1));
    const Matrix<A> start = rng.matrix<A>(d, e), k = rng.matrix<A>(w, d), v = rng.matrix<A>(w, e);
    const Guarded<A> matrix(Matrix<A>(Matrix<A>::Map(start.data(), 1, d * e))), keys(k), values(v);
    const detail::Running<A> running{matrix.data(), d, e, keys, values};
    for (Index count = 0, m = 0, turn = 0; count < w || turn == 0; ++turn) {
      const bool is_new = rng.chance(0.8);
      count += is_new;
      m += is_new;
      if (is_new && rng.chance(0.2)) {
        running.take(count, m, weight);
        continue;
      }
      const Matrix<A> q = rng.matrix<A>(1, d);
      const Guarded<A> output(1, e), room(kFoldedKeys, d);
      running.read(q.data(), count, m, is_new, weight, room, output.data());
      const Exact seen(k.topRows(count).eval()), read(v.topRows(count).eval());
      output.expect(
          Exact(q) * (Exact(start) + static_cast<long double>(weight) * (seen.transpose() * read)),
          {count + d + 4});
      if (rng.chance(0.1)) {
        running.level(count, m, weight);
        m = 0;
      }
    }
    matrix.expect_nothing_beside("R");
  });
}

/// A first query reads what R becomes row by row, in order and once each.
TYPED_TEST(StreamingProduct, AFirstQueryReadsRowsThatAreCompletedForIt) {
  using A = TypeParam;
  for_cases(100, [](Random& rng) {
    const Index d = rng.integer(0, 200), e = rng.integer(0, 300);
    const bool is_new = rng.chance(0.8);
    const Matrix<A> k = rng.matrix<A>(1, d), v = rng.matrix<A>(1, e), q = rng.matrix<A>(1, d);
    const Matrix<A> start = rng.matrix<A>(d, e);
    Matrix<A> completed = Matrix<A>::Constant(d, e, A(NAN));
    const Guarded<A> keys(k), values(v), output(1, e), room(kFoldedKeys, d);
    const detail::Running<A> running{completed.data(), d, e, keys, values};
    Index rows = 0;
    const A score = running.read_first(
        q.data(), is_new, A(0.5), room.data(), output.data(), [&](Index begin, Index end) {
          ASSERT_EQ(begin, rows);
          rows = end;
          completed.middleRows(begin, end - begin) = start.middleRows(begin, end - begin);
        });
    ASSERT_EQ(rows, d);
    const long double weight = is_new ? 0.5L : 0;
    const Exact key = Exact(q) * Exact(k).transpose();
    Guarded<A>(Matrix<A>::Constant(1, 1, score)).expect(weight * key, {d + 1});
    output.expect(Exact(q) * Exact(start) + weight * (key * Exact(v)), {2 * d + 3});
    // The rows of one part hold the key from then on.
    Index holding = 0;
    for (Index r = 0; r < d && e > 0; ++r) holding += completed(r, 0) != start(r, 0);
    EXPECT_EQ(holding, is_new ? Turns<kFoldedKeys>{d}.part(0).end : 0);
  });
}

}  // namespace
}  // namespace mhla::test
