#include "mhla/stage/streaming_product.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/chain.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::step;

using detail::kFoldedKeys;
using detail::Rows;

/// R, two keys with their values and a query, at offsets from any alignment.
template <class A>
struct Pass {
  Index d, e, begin, end;
  Index offset, key_stride, value_stride;
  std::vector<A> running, keys, values, query;

  Pass(test::Random& rng, Index d_, Index e_)
      : d(d_), e(e_), begin(rng.integer(0, d)), end(rng.integer(begin, d)) {
    offset = rng.integer(0, 15);
    key_stride = d + rng.integer(0, 3);
    value_stride = e + rng.integer(0, 3);
    running = numbers(rng, d * e + 20);
    keys = numbers(rng, kFoldedKeys * key_stride);
    values = numbers(rng, kFoldedKeys * value_stride);
    query = numbers(rng, d);
  }
  static std::vector<A> numbers(test::Random& rng, Index count) {
    std::vector<A> all(static_cast<std::size_t>(count));
    for (A& x : all) x = static_cast<A>(rng.uniform(-1, 1));
    return all;
  }

  A& r(Index i, Index j) { return running[static_cast<std::size_t>(offset + i * e + j)]; }
  A& key(Index f, Index i) { return keys[static_cast<std::size_t>(f * key_stride + i)]; }
  A& value(Index f, Index j) { return values[static_cast<std::size_t>(f * value_stride + j)]; }

  /// All of R's memory after the update, by its definition.
  std::vector<A> updated() {
    Pass after = *this;
    for (Index i = begin; i < end; ++i) {
      for (Index j = 0; j < e; ++j) {
        for (Index f = 0; f < kFoldedKeys; ++f) {
          after.r(i, j) = step(key(f, i), value(f, j), after.r(i, j));
        }
      }
    }
    return after.running;
  }

  /// Updates R and returns the output; nothing may be written behind it.
  std::vector<A> run() {
    std::vector<A> output(static_cast<std::size_t>(e + 20), A(7));
    detail::fold_and_read(running.data() + offset, Rows<A>(keys.data(), key_stride),
                          Rows<A>(values.data(), value_stride), query.data(), d, begin, end, e,
                          output.data());
    for (std::size_t j = static_cast<std::size_t>(e); j < output.size(); ++j) {
      EXPECT_EQ(output[j], 7) << "written outside";
    }
    output.resize(static_cast<std::size_t>(e));
    return output;
  }
};

template <class A>
bool same_bits(const std::vector<A>& a, const std::vector<A>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(A)) == 0;
}

/// Whether R and the output of a pass are what they must be.
template <class A>
void expect_definition(Pass<A> x) {
  constexpr long double u = std::numeric_limits<A>::epsilon() / 2;
  const std::vector<A> updated = x.updated();
  Pass<A> after = x;
  const std::vector<A> output = after.run();
  ASSERT_TRUE(same_bits(after.running, updated));
  // The products with both keys, and the chain over the rows of R.
  const long double mu = static_cast<long double>(kFoldedKeys + 1 + x.d) * u;
  for (Index j = 0; j < x.e; ++j) {
    long double sum = 0, size = 0;
    for (Index i = 0; i < x.d; ++i) {
      const long double q = x.query[static_cast<std::size_t>(i)];
      std::vector<long double> terms = {x.r(i, j)};
      for (Index f = 0; f < kFoldedKeys && i >= x.begin && i < x.end; ++f) {
        terms.push_back(static_cast<long double>(x.key(f, i)) * x.value(f, j));
      }
      for (const long double term : terms) {
        sum += q * term;
        size += std::abs(q * term);
      }
    }
    ASSERT_LE(std::abs(output[static_cast<std::size_t>(j)] - sum), mu / (1 - mu) * size) << j;
  }
}

template <class A>
class Running : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(Running, Accumulators);

TYPED_TEST(Running, IsTheUpdateOfItsRowsAndTheProductWithAllOfThem) {
  test::Random rng(1);
  for (Index d = 0; d <= 70; ++d) {
    for (Index e = 0; e <= 70; e += rng.integer(1, 3)) {
      SCOPED_TRACE(testing::Message() << d << " x " << e);
      expect_definition(Pass<TypeParam>(rng, d, e));
    }
  }
  for (const Index d : {1, 64, 255, 256}) {
    for (const Index e : {1, 64, 255, 256}) expect_definition(Pass<TypeParam>(rng, d, e));
  }
}

TYPED_TEST(Running, AnyRowsMayBeUpdated) {
  test::Random rng(2);
  const Index d = 9;
  for (const Index e : {5, 37}) {
    Pass<TypeParam> x(rng, d, e);
    for (x.begin = 0; x.begin <= d; ++x.begin) {
      for (x.end = x.begin; x.end <= d; ++x.end) {
        SCOPED_TRACE(testing::Message() << x.begin << " to " << x.end);
        expect_definition(x);
      }
    }
  }
}

TYPED_TEST(Running, KeysBesideTheRowsThatAreUpdatedAreNotRead) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    test::Random rng(seed);
    Pass<TypeParam> x(rng, rng.integer(0, 20), rng.integer(0, 70)), touched = x;
    for (Index i = 0; i < x.d; ++i) {
      if (i >= x.begin && i < x.end) continue;
      for (Index f = 0; f < kFoldedKeys; ++f) {
        touched.key(f, i) = std::numeric_limits<TypeParam>::quiet_NaN();
      }
    }
    EXPECT_TRUE(same_bits(touched.run(), x.run())) << "seed " << seed;
    EXPECT_TRUE(same_bits(touched.running, x.running)) << "seed " << seed;
  }
}

TYPED_TEST(Running, BitsOfAColumnDoNotDependOnTheOthers) {
  test::Random rng(3);
  for (const Index e : {7, 70, 150}) {
    Pass<TypeParam> x(rng, 12, e);
    Pass<TypeParam> whole = x;
    const std::vector<TypeParam> outputs = whole.run();
    for (Index j = 0; j < e; ++j) {  // column j alone
      Pass<TypeParam> one(rng, 12, 1);
      one.begin = x.begin;
      one.end = x.end;
      one.query = x.query;
      for (Index i = 0; i < x.d; ++i) {
        one.r(i, 0) = x.r(i, j);
        for (Index f = 0; f < kFoldedKeys; ++f) one.key(f, i) = x.key(f, i);
      }
      for (Index f = 0; f < kFoldedKeys; ++f) one.value(f, 0) = x.value(f, j);
      EXPECT_EQ(one.run()[0], outputs[static_cast<std::size_t>(j)]);
      for (Index i = 0; i < x.d; ++i) EXPECT_EQ(one.r(i, 0), whole.r(i, j));
    }
  }
}

/// Keys come one at a time, some with a query that reads, some without one, some queries without a
/// key; in between all of R is brought to the same keys.
TYPED_TEST(Running, HoldsAllKeysForWhoeverReads) {
  constexpr long double u = std::numeric_limits<TypeParam>::epsilon() / 2;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    test::Random rng(seed);
    const Index d = rng.integer(1, 40), e = rng.integer(1, 70), w = rng.integer(1, 24);
    const auto weight = static_cast<TypeParam>(rng.uniform(-1, 1));
    Matrix<TypeParam> r = rng.matrix<TypeParam>(d, e), k = rng.matrix<TypeParam>(w, d),
                      v = rng.matrix<TypeParam>(w, e), scaled(kFoldedKeys, d);
    const Matrix<long double> start = r.template cast<long double>();
    const detail::Running<TypeParam> running{r.data(), d, e, Rows<TypeParam>(k.data(), d),
                                             Rows<TypeParam>(v.data(), e)};
    for (Index count = 0, m = 0, step = 0; count < w || step == 0; ++step) {
      const bool is_new = rng.chance(0.8);
      count += is_new;
      m += is_new;
      if (is_new && rng.chance(0.2)) {
        running.take(count, m, weight);
        continue;
      }
      for (Index f = std::max<Index>(0, kFoldedKeys - count); f < kFoldedKeys; ++f) {
        scaled.row(f) = weight * k.row(count - kFoldedKeys + f);
      }
      const Matrix<TypeParam> q = rng.matrix<TypeParam>(1, d);
      Matrix<TypeParam> got(1, e);
      running.read(q.data(), count, m, is_new, weight, Rows<TypeParam>(scaled.data(), d),
                   got.data());
      const Matrix<long double> keys = k.topRows(count).template cast<long double>() * weight,
                                values = v.topRows(count).template cast<long double>(),
                                query = q.template cast<long double>();
      const Matrix<long double> exact = query * (start + keys.transpose() * values),
                                size = query.cwiseAbs() *
                                       (start.cwiseAbs() +
                                        keys.cwiseAbs().transpose() * values.cwiseAbs());
      const long double mu = static_cast<long double>(count + d + 3) * u;
      for (Index j = 0; j < e; ++j) {
        ASSERT_LE(std::abs(got(0, j) - exact(0, j)), mu / (1 - mu) * size(0, j)) << "seed " << seed;
      }
      if (rng.chance(0.1)) {
        running.level(count, m, weight);
        m = 0;
      }
    }
  }
}

}  // namespace
}  // namespace mhla
