// IntraBlockAdjoint of mhla/stage/intra_block.hpp against its definition, pair by pair.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/stage/intra_block.hpp"
#include "support/exact.hpp"
#include "support/outputs.hpp"

namespace mhla {
namespace {

using test::Memory;
using test::rows_of;
using test::same_bits;

using detail::IntraBlockAdjoint;
using detail::kStripTokens;
using detail::Rows;

constexpr Index kLengths[] = {1, 63, 64, 65, 200};

/// Some slots of [0, tokens), ascending.
std::vector<Index> some_slots(test::Random& rng, Index tokens) {
  const double probability = rng.chance(0.5) ? 1 : rng.chance(0.7) ? 0.7 : 0.1;
  std::vector<Index> slots;
  for (Index s = 0; s < tokens; ++s) {
    if (rng.chance(probability)) slots.push_back(s);
  }
  return slots;
}

/// One block: kept queries and keys in their slots, the gradients of its outputs, and what its
/// results are added to.
template <class A>
struct Block {
  test::Random rng;
  bool exact;  // whole numbers
  Index tokens, d, e;
  A weight;
  std::vector<Index> query_slots, key_slots;
  Matrix<A> q, dn, dden;  // a row for each kept query
  Matrix<A> k, v;         // a row for each kept key
  Matrix<A> dq, dk, dv;   // before

  Block(std::uint64_t seed, bool exact_)
      : rng(seed),
        exact(exact_),
        tokens(rng.chance(0.5) ? kLengths[seed % 5] : rng.integer(0, 200)),
        d(rng.integer(1, exact ? 12 : 24)),
        e(rng.integer(0, exact ? 12 : 40)),
        weight(exact ? static_cast<A>(rng.integer(-1, 1)) : static_cast<A>(rng.uniform(-1, 2))),
        query_slots(some_slots(rng, tokens)),
        key_slots(some_slots(rng, tokens)),
        q(numbers(queries(), d)),
        dn(numbers(queries(), e)),
        dden(numbers(queries(), 1)),
        k(numbers(keys(), d)),
        v(numbers(keys(), e)),
        dq(numbers(queries(), d)),
        dk(numbers(keys(), d)),
        dv(numbers(keys(), e)) {}

  Index queries() const { return std::ssize(query_slots); }
  Index keys() const { return std::ssize(key_slots); }
  Matrix<A> numbers(Index rows, Index cols) {
    return exact ? test::integers<A>(rng, rows, cols, 1) : rng.matrix<A>(rows, cols);
  }
  bool sees(Index t, Index j) const {
    return key_slots[static_cast<std::size_t>(j)] <= query_slots[static_cast<std::size_t>(t)];
  }
  Index visible(Index t) const {
    Index count = 0;
    while (count < keys() && sees(t, count)) ++count;
    return count;
  }
};

template <class A>
struct Result {
  Matrix<A> dq, dk, dv;
  Matrix<A> sums;  // of scores, and of scores times products [queries,2]
  A dweight;
};

struct Reading {
  Index strip = kStripTokens;  ///< most queries of a strip
  bool early = false;          ///< all keys are there before the first query
  bool dden = true;
};

/// Appends strips of the block's keys until the first `needed` are there.
template <class A>
void append_keys(const Block<A>& x, Index needed, IntraBlockAdjoint<A>& block) {
  for (Index begin = block.keys(); begin < needed; begin += kStripTokens) {
    const Index count = std::min(kStripTokens, x.keys() - begin);
    Memory memory(100000);
    const Matrix<A> k = x.k.middleRows(begin, count), v = x.v.middleRows(begin, count);
    block.append(rows_of(memory, k, kStripTokens), rows_of(memory, v, kStripTokens),
                 x.key_slots.data() + begin, count);
  }
}

/// Reads a block, strip by strip; what lies beside its results is checked to stay NaN.
template <class A>
Result<A> gradient_of(const Block<A>& x, const Reading& reading = {}) {
  Memory memory(1500000);
  IntraBlockAdjoint<A> block("f", memory.arena, x.tokens, x.d, x.e);
  block.clear();
  if (reading.early) append_keys(x, x.keys(), block);
  Result<A> result{x.dq, x.dk, x.dv, test::unwritten<A>(x.queries(), 2), 0};
  const Rows<A> dk = rows_of(memory, x.dk, x.keys() + 1), dv = rows_of(memory, x.dv, x.keys() + 1);
  for (Index begin = 0; begin < x.queries(); begin += reading.strip) {
    const Index count = std::min(reading.strip, x.queries() - begin);
    append_keys(x, x.visible(begin + count - 1), block);
    Memory own(200000);
    const Matrix<A> q = x.q.middleRows(begin, count), dn = x.dn.middleRows(begin, count),
                    dq = x.dq.middleRows(begin, count), dden = x.dden.middleRows(begin, count);
    const Rows<A> queries = rows_of(own, q), gradients = rows_of(own, dn),
                  dqueries = rows_of(own, dq, count + 1);
    block.score(queries, x.query_slots.data() + begin, count);
    block.multiply_values(gradients);
    for (Index t = 0; t < count; ++t) {
      result.sums(begin + t, 0) = block.score_sums()[t];
      result.sums(begin + t, 1) = block.product_sums()[t];
    }
    result.dweight += block.finish(x.weight, reading.dden ? dden.data() : nullptr);
    block.add_queries(dqueries);
    block.add_keys(queries, dk);
    block.add_values(x.weight, gradients, dv);
    result.dq.middleRows(begin, count) = test::matrix_of(dqueries, count, x.d);
    test::expect_nothing_beside(dqueries, count + 1, count, x.d);
  }
  result.dk = test::matrix_of(dk, x.keys(), x.d);
  result.dv = test::matrix_of(dv, x.keys(), x.e);
  test::expect_nothing_beside(dk, x.keys() + 1, x.keys(), x.d);
  test::expect_nothing_beside(dv, x.keys() + 1, x.keys(), x.e);
  return result;
}

/// A sum and the sum of the magnitudes of its terms.
struct Sum {
  long double value = 0, size = 0;
  void add(long double x) {
    value += x;
    size += std::abs(x);
  }
  /// The sum times a factor of that size as terms.
  void add(const Sum& x, long double factor) {
    value += x.value * factor;
    size += x.size * std::abs(factor);
  }
};

template <class A>
Sum product(const Matrix<A>& x, Index r, const Matrix<A>& y, Index s) {
  Sum sum;
  for (Index j = 0; j < x.cols(); ++j) sum.add(static_cast<long double>(x(r, j)) * y(s, j));
  return sum;
}

/// Results against the definition: equal for whole numbers, else within m roundings of terms of
/// that size. The chains on the way of a term: D roundings in a score, E in a product, one or two
/// where dden and the weight join, and one for each key or query that is added up.
template <class A>
void expect_definition(const Block<A>& x, const Result<A>& got, bool dden) {
  constexpr long double u = std::numeric_limits<A>::epsilon() / 2;
  const auto expect = [&](A value, const Sum& sum, Index m, const char* what) {
    const long double mu = static_cast<long double>(m) * u;
    ASSERT_LE(std::abs(value - sum.value), x.exact ? 0 : mu / (1 - mu) * sum.size) << what;
  };
  const Index queries = x.queries(), keys = x.keys();
  std::vector<Sum> dk(static_cast<std::size_t>(keys * x.d)),
      dv(static_cast<std::size_t>(keys * x.e));
  for (Index j = 0; j < keys; ++j) {
    for (Index i = 0; i < x.d; ++i) dk[static_cast<std::size_t>(j * x.d + i)].add(x.dk(j, i));
    for (Index i = 0; i < x.e; ++i) dv[static_cast<std::size_t>(j * x.e + i)].add(x.dv(j, i));
  }
  Sum dweight;
  for (Index t = 0; t < queries; ++t) {
    Sum scores, products;
    std::vector<Sum> dq(static_cast<std::size_t>(x.d));
    for (Index i = 0; i < x.d; ++i) dq[static_cast<std::size_t>(i)].add(x.dq(t, i));
    for (Index j = 0; j < keys; ++j) {
      if (!x.sees(t, j)) continue;
      const Sum p = product(x.q, t, x.k, j), dnv = product(x.dn, t, x.v, j);
      Sum dp = dnv;
      if (dden) dp.add(x.dden(t, 0));
      scores.add(p, 1);
      products.value += p.value * dnv.value;
      products.size += p.size * dnv.size;
      dweight.value += p.value * dp.value;
      dweight.size += p.size * dp.size;
      for (Index i = 0; i < x.d; ++i) {
        dq[static_cast<std::size_t>(i)].add(dp, static_cast<long double>(x.weight) * x.k(j, i));
        dk[static_cast<std::size_t>(j * x.d + i)].add(
            dp, static_cast<long double>(x.weight) * x.q(t, i));
      }
      for (Index i = 0; i < x.e; ++i) {
        dv[static_cast<std::size_t>(j * x.e + i)].add(
            p, static_cast<long double>(x.weight) * x.dn(t, i));
      }
    }
    expect(got.sums(t, 0), scores, x.d + keys, "sum of scores");
    expect(got.sums(t, 1), products, x.d + x.e + keys, "sum of products");
    for (Index i = 0; i < x.d; ++i) {
      expect(got.dq(t, i), dq[static_cast<std::size_t>(i)], x.e + 2 + keys + 1, "dq");
    }
  }
  for (Index j = 0; j < keys; ++j) {
    for (Index i = 0; i < x.d; ++i) {
      expect(got.dk(j, i), dk[static_cast<std::size_t>(j * x.d + i)], x.e + 2 + queries + 1, "dk");
    }
    for (Index i = 0; i < x.e; ++i) {
      expect(got.dv(j, i), dv[static_cast<std::size_t>(j * x.e + i)], x.d + 1 + queries + 1, "dv");
    }
  }
  // For each query an addition and one of its two parts, for each strip one more.
  expect(got.dweight, dweight, x.d + x.e + keys + 2 + 2 * queries, "dweight");
}

template <class A>
class IntraBlockAdjointOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(IntraBlockAdjointOf, Accumulators);

TYPED_TEST(IntraBlockAdjointOf, IsTheDefinitionExactlyOnWholeNumbers) {
  for (std::uint64_t seed = 0; seed < 60 && !this->HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Block<TypeParam> x(seed, true);
    const Reading reading{.strip = x.rng.chance(0.5) ? kStripTokens : x.rng.integer(1, 64),
                          .early = x.rng.chance(0.3),
                          .dden = x.rng.chance(0.7)};
    expect_definition(x, gradient_of(x, reading), reading.dden);
  }
}

TYPED_TEST(IntraBlockAdjointOf, IsTheDefinitionWithinItsBound) {
  for (std::uint64_t seed = 100; seed < 140 && !this->HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Block<TypeParam> x(seed, false);
    for (const bool dden : {false, true}) {
      expect_definition(x, gradient_of(x, {.dden = dden}), dden);
    }
  }
}

/// The same bits in all but the gradient of the weight, which is summed strip by strip.
template <class A>
bool same_rows(const Result<A>& x, const Result<A>& y) {
  return same_bits(x.dq, y.dq) && same_bits(x.dk, y.dk) && same_bits(x.dv, y.dv) &&
         same_bits(x.sums, y.sums);
}

TYPED_TEST(IntraBlockAdjointOf, StripsOfQueriesAndLaterKeysChangeNoBit) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Block<TypeParam> x(seed, false);
    const Result<TypeParam> whole = gradient_of(x);
    for (const Index strip : {Index{1}, Index{5}, x.rng.integer(1, kStripTokens), kStripTokens}) {
      for (const bool early : {false, true}) {
        const Result<TypeParam> got = gradient_of(x, {.strip = strip, .early = early});
        EXPECT_TRUE(same_rows(got, whole))
            << "seed " << seed << " strip " << strip << (early ? " early" : "");
        EXPECT_TRUE(strip != kStripTokens || got.dweight == whole.dweight);
      }
    }
  }
}

TYPED_TEST(IntraBlockAdjointOf, SlotsThatNobodyKeepsChangeNoBit) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Block<TypeParam> x(seed, false);
    Block<TypeParam> spread = x;
    spread.tokens = 3 * x.tokens;
    for (Index& slot : spread.query_slots) slot = 3 * slot + 1;
    for (Index& slot : spread.key_slots) slot = 3 * slot + 1;
    const Result<TypeParam> got = gradient_of(spread), expected = gradient_of(x);
    EXPECT_TRUE(same_rows(got, expected)) << "seed " << seed;
    EXPECT_EQ(got.dweight, expected.dweight);
  }
}

/// Rows of `got` are NaN where touched(row), and have the bits of `clean` elsewhere.
template <class A, class F>
void expect_nan_in(const Matrix<A>& got, const Matrix<A>& clean, F&& touched, const char* what) {
  for (Index r = 0; r < got.rows(); ++r) {
    if (touched(r)) {
      EXPECT_TRUE(got.row(r).array().isNaN().all()) << what << " of " << r;
    } else {
      EXPECT_TRUE(same_bits<A>(got.row(r), clean.row(r))) << what << " of " << r;
    }
  }
}

TYPED_TEST(IntraBlockAdjointOf, ANaNReachesThePairsThatSeeEachOtherAndNoOther) {
  const auto nan = std::numeric_limits<TypeParam>::quiet_NaN();
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Block<TypeParam> x(seed, false);
    if (x.queries() == 0 || x.keys() == 0 || x.e == 0) continue;
    const Reading reading{.strip = x.rng.chance(0.5) ? kStripTokens : x.rng.integer(1, 64),
                          .early = x.rng.chance(0.5)};
    const Result<TypeParam> clean = gradient_of(x, reading);
    const Index query = x.rng.integer(0, x.queries() - 1), key = x.rng.integer(0, x.keys() - 1);
    const auto none = [](Index) { return false; };
    const auto query_itself = [&](Index t) { return t == query && x.visible(t) > 0; };
    const auto seen_by_query = [&](Index j) { return x.sees(query, j); };
    const auto seers = [&](Index t) { return x.sees(t, key); };
    const auto key_itself = [&](Index j) {
      return j == key && x.sees(x.queries() - 1, key);  // the last query sees most
    };
    const auto touch = [&](auto&& member, Index row) {
      Block<TypeParam> touched = x;
      (touched.*member).row(row).setConstant(nan);
      return gradient_of(touched, reading);
    };
    Result<TypeParam> got = touch(&Block<TypeParam>::q, query);
    expect_nan_in(got.dq, clean.dq, none, "dq from q");  // dP does not read q
    expect_nan_in(got.dk, clean.dk, seen_by_query, "dk from q");
    expect_nan_in(got.dv, clean.dv, seen_by_query, "dv from q");
    got = touch(&Block<TypeParam>::dn, query);
    expect_nan_in(got.dq, clean.dq, query_itself, "dq from dn");
    expect_nan_in(got.dk, clean.dk, seen_by_query, "dk from dn");
    expect_nan_in(got.dv, clean.dv, seen_by_query, "dv from dn");
    got = touch(&Block<TypeParam>::k, key);
    expect_nan_in(got.dq, clean.dq, seers, "dq from k");
    expect_nan_in(got.dk, clean.dk, none, "dk from k");
    expect_nan_in(got.dv, clean.dv, key_itself, "dv from k");
    got = touch(&Block<TypeParam>::v, key);
    expect_nan_in(got.dq, clean.dq, seers, "dq from v");
    expect_nan_in(got.dk, clean.dk, key_itself, "dk from v");
    expect_nan_in(got.dv, clean.dv, none, "dv from v");
    EXPECT_EQ(std::isnan(got.dweight), key_itself(key));
  }
}

TYPED_TEST(IntraBlockAdjointOf, ABlockIsClearedBeforeTheNextOne) {
  const Block<TypeParam> first(12, true);
  ASSERT_GT(first.keys(), 0);
  Memory memory(1500000);
  IntraBlockAdjoint<TypeParam> block("f", memory.arena, 200, first.d, first.e);
  append_keys(first, first.keys(), block);
  EXPECT_EQ(block.keys(), first.keys());
  block.clear();
  EXPECT_EQ(block.keys(), 0);
  const Matrix<TypeParam> q = first.q.topRows(1), dn = first.dn.topRows(1);
  const Index last[] = {500};
  const Rows<TypeParam> dq = rows_of(memory, q);
  block.score(rows_of(memory, q), last, 1);
  block.multiply_values(rows_of(memory, dn));
  EXPECT_EQ(block.score_sums()[0], 0);
  EXPECT_EQ(block.product_sums()[0], 0);
  EXPECT_EQ(block.finish(2, q.data()), 0);
  block.add_queries(dq);
  EXPECT_EQ(test::matrix_of(dq, 1, first.d), q);
  EXPECT_EQ(IntraBlockAdjoint<TypeParam>().keys(), 0);
}

}  // namespace
}  // namespace mhla
