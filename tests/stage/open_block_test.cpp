#include "mhla/stage/open_block.hpp"

#include <gtest/gtest.h>

#include "stage/stage_case.hpp"
#include "support/chain.hpp"

namespace mhla::test {
namespace {

template <class A>
class OpenBlock : public testing::Test {};
TYPED_TEST_SUITE(OpenBlock, Accumulators);

/// S [D,E] of a stream, NaN before it is written.
template <class A>
class SlabSummary {
 public:
  SlabSummary(Index d, Index e)
      : d_(d), e_(e), slabs_(detail::ceil_div(d, detail::kTile.slab), detail::kTile.slab * e) {}
  operator detail::Rows<A>() const { return slabs_; }  // NOLINT(google-explicit-constructor)
  Matrix<A> numbers() const {
    Matrix<A> x(d_, e_);
    for (Index d = 0; d < d_; ++d) {
      std::copy_n(slabs_.rows().row(d / detail::kTile.slab) + d % detail::kTile.slab * e_, e_,
                  x.data() + d * e_);
    }
    return x;
  }

 private:
  Index d_, e_;
  Guarded<A> slabs_;
};

template <class A>
Matrix<A> flat(const Matrix<A>& x) {
  return Matrix<A>::Map(x.data(), 1, x.size());
}

template <class A>
void expect_taken(Random& rng, Index rows, Index cols) {
  const Index count = rng.integer(0, 10);
  const auto weight = static_cast<A>(rng.uniform(-1, 1));
  const auto keys = rng.matrix<A>(count, rows), values = rng.matrix<A>(count, cols),
             before = rng.matrix<A>(rows, cols), read = rng.matrix<A>(rows, cols);
  Matrix<A> after = before, added = read;
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < cols; ++j) {
      for (Index k = 0; k < count; ++k) after(i, j) = step(keys(k, i), values(k, j), after(i, j));
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

/// Keys come one at a time, some with a query that reads, some without one, some queries without a
/// key; or several, all of which are added to R at once.
TYPED_TEST(OpenBlock, EveryQueryReadsAllKeysSoFarAndTheSummaryGetsThem) {
  using A = TypeParam;
  for_cases(200, [](Random& rng) {
    const Index d = rng.integer(1, 60), e = rng.integer(1, 70), w = rng.integer(0, 40);
    const auto weight = static_cast<A>(rng.uniform(-1, 1));
    const Matrix<A> start = rng.matrix<A>(d, e), k = rng.matrix<A>(w, d), v = rng.matrix<A>(w, e);
    const Guarded<A> running(flat(start)), keys(k), values(v);
    const SlabSummary<A> summary(d, e);
    const detail::OpenBlock<A> block{running.data(), summary, keys, values, d, e, weight};
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
          // R is a sum of S's gains, of which each has the errors of two S.
          output.expect(Exact(q) * (Exact(start) +
                                    static_cast<long double>(weight) * (seen.transpose() * read)),
                        {4 * count + d + 4});
        }
      }
      block.take(taken, count, level);
    }
    running.expect_nothing_beside("R");
    block.complete_summary(w);
    Matrix<A> sum = Matrix<A>::Zero(d, e);
    for (Index i = 0; i < d; ++i) {
      for (Index j = 0; j < e; ++j) {
        for (Index key = 0; key < w; ++key) sum(i, j) = step(k(key, i), v(key, j), sum(i, j));
      }
    }
    ASSERT_TRUE(same_bits<A>(summary.numbers(), sum)) << d << " x " << e << ", " << w << " keys";
  });
}

/// A first query reads what R becomes row by row, in order and once each.
TYPED_TEST(OpenBlock, AFirstQueryReadsRowsThatAreCompletedForIt) {
  using A = TypeParam;
  for_cases(100, [](Random& rng) {
    const Index d = rng.integer(0, 200), e = rng.integer(0, 300);
    const bool has_key = rng.chance(0.8);
    const Matrix<A> k = rng.matrix<A>(1, d), v = rng.matrix<A>(1, e), q = rng.matrix<A>(1, d);
    const Matrix<A> start = rng.matrix<A>(d, e);
    Matrix<A> completed = Matrix<A>::Constant(d, e, A(NAN));
    const Guarded<A> keys(k), values(v), output(1, e), room(1, d);
    const detail::OpenBlock<A> block{completed.data(), {}, keys, values, d, e, A(0.5)};
    Index rows = 0;
    const A score = block.read_first(
        q.data(), has_key, room.data(), output.data(), [&](Index begin, Index end) {
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
