#include "mhla/stage/intra_block.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::Memory;
using test::same_bits;

using detail::KeyTiles;
using detail::kStripTokens;
using detail::Rows;

constexpr Index kLengths[] = {1, 63, 64, 65, 200};

/// Some slots of [0, tokens), ascending.
std::vector<Index> some_slots(test::Random& rng, Index tokens, double probability) {
  std::vector<Index> slots;
  for (Index s = 0; s < tokens; ++s) {
    if (rng.chance(probability)) slots.push_back(s);
  }
  return slots;
}

/// One block: kept queries and keys in their slots, and what the earlier blocks contributed.
template <class A>
struct Block {
  test::Random rng;
  Index tokens, d, e;
  A weight;
  std::vector<Index> query_slots, key_slots;
  Matrix<A> q, k, v;             // a row for each kept one
  Matrix<A> before, den_before;  // [queries,E], [queries,1]

  explicit Block(std::uint64_t seed)
      : rng(seed),
        tokens(rng.chance(0.5) ? kLengths[seed % 5] : rng.integer(0, 200)),
        d(rng.integer(1, 24)),
        e(rng.integer(0, 40)),
        weight(static_cast<A>(rng.uniform(-1, 2))),
        query_slots(some_slots(rng, tokens, kept())),
        key_slots(some_slots(rng, tokens, kept())),
        q(rng.matrix<A>(std::ssize(query_slots), d)),
        k(rng.matrix<A>(std::ssize(key_slots), d)),
        v(rng.matrix<A>(std::ssize(key_slots), e)),
        before(rng.matrix<A>(q.rows(), e)),
        den_before(rng.matrix<A>(q.rows(), 1)) {}

  /// How likely a token is to be kept.
  double kept() { return rng.chance(0.5) ? 1 : rng.chance(0.7) ? 0.7 : 0.1; }

  Index visible(Index query) const {
    const Index slot = query_slots[static_cast<std::size_t>(query)];
    return std::count_if(key_slots.begin(), key_slots.end(), [=](Index s) { return s <= slot; });
  }
};

template <class A>
Rows<A> rows_of(Memory& memory, const Matrix<A>& x, Index begin, Index count, Index room) {
  const Rows<A> rows("f", memory.arena, room, x.cols());
  for (Index r = 0; r < count; ++r) {
    std::copy_n(x.data() + (begin + r) * x.cols(), x.cols(), rows.row(r));
  }
  return rows;
}

/// Appends strips of the block's keys until the first `needed` are there.
template <class A>
void append_keys(const Block<A>& x, Index needed, KeyTiles<A>& keys) {
  std::vector<Index> tokens(static_cast<std::size_t>(x.k.rows()));
  std::iota(tokens.begin(), tokens.end(), Index{0});
  for (Index begin = keys.count(); begin < needed; begin += kStripTokens) {
    const Index count = std::min(kStripTokens, x.k.rows() - begin);
    Memory memory(20000);
    keys.template append<A>(rows_of(memory, x.k, begin, count, kStripTokens), x.v,
                            tokens.data() + begin, x.key_slots.data() + begin, count, x.weight);
  }
}

struct Reading {
  Index strip = kStripTokens;  ///< most queries of a strip
  bool denominators = true;
  bool early = false;  ///< all keys are there before the first query
};

/// Outputs and denominators side by side, [queries,E+1].
template <class A>
Matrix<A> outputs_of(const Block<A>& x, const Reading& reading = {}) {
  Memory memory(300000);
  KeyTiles<A> keys("f", memory.arena, x.k.rows(), x.d, x.e);
  if (reading.early) append_keys(x, x.k.rows(), keys);
  Matrix<A> result(x.q.rows(), x.e + 1);
  for (Index begin = 0; begin < x.q.rows(); begin += reading.strip) {
    const Index count = std::min(reading.strip, x.q.rows() - begin);
    append_keys(x, x.visible(begin + count - 1), keys);
    Memory own(100000);
    const Rows<A> queries = rows_of(own, x.q, begin, count, count);
    const Rows<A> outputs = rows_of(own, x.before, begin, count, count);
    const Rows<A> scores("f", own.arena, kStripTokens, kStripTokens);
    std::vector<A> den(x.den_before.data() + begin, x.den_before.data() + begin + count);
    detail::add_intra_block(queries, x.query_slots.data() + begin, count, keys, scores, outputs,
                            reading.denominators ? den.data() : nullptr);
    for (Index r = 0; r < count; ++r) {
      std::copy_n(outputs.row(r), x.e, result.data() + (begin + r) * (x.e + 1));
      result(begin + r, x.e) = den[static_cast<std::size_t>(r)];
      for (Index j = x.e; j < outputs.stride; ++j) EXPECT_TRUE(std::isnan(outputs.row(r)[j]));
    }
  }
  return result;
}

template <class A>
class IntraBlock : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(IntraBlock, Accumulators);

TYPED_TEST(IntraBlock, AddsTheVisibleKeysOfEveryQuery) {
  constexpr long double u = std::numeric_limits<TypeParam>::epsilon() / 2;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Block<TypeParam> x(seed);
    const Matrix<TypeParam> got = outputs_of(x);
    for (Index t = 0; t < x.q.rows(); ++t) {
      const Index visible = x.visible(t);
      std::vector<long double> sum(static_cast<std::size_t>(x.e + 1)), size = sum;
      for (Index j = 0; j <= x.e; ++j) {
        const auto at = static_cast<std::size_t>(j);
        sum[at] = j < x.e ? x.before(t, j) : x.den_before(t, 0);
        size[at] = std::abs(sum[at]);
      }
      for (Index key = 0; key < visible; ++key) {
        long double score = 0, score_size = 0;
        for (Index i = 0; i < x.d; ++i) {
          const long double term = static_cast<long double>(x.weight) * x.q(t, i) * x.k(key, i);
          score += term;
          score_size += std::abs(term);
        }
        for (Index j = 0; j <= x.e; ++j) {
          const long double value = j < x.e ? x.v(key, j) : 1;
          sum[static_cast<std::size_t>(j)] += score * value;
          size[static_cast<std::size_t>(j)] += score_size * std::abs(value);
        }
      }
      // The weight, the chain over d, the product with v and the chain over the keys.
      const long double mu = static_cast<long double>(1 + x.d + 1 + visible) * u;
      for (Index j = 0; j <= x.e; ++j) {
        const auto at = static_cast<std::size_t>(j);
        ASSERT_LE(std::abs(got(t, j) - sum[at]), mu / (1 - mu) * size[at]) << "seed " << seed;
      }
    }
  }
}

TYPED_TEST(IntraBlock, NothingOfLaterKeysReachesAQuery) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Block<TypeParam> x(seed);
    if (x.k.rows() == 0) continue;
    const Matrix<TypeParam> clean = outputs_of(x);
    for (int round = 0; round < 4; ++round) {
      Block<TypeParam> touched = x;
      const Index from = x.rng.integer(0, x.k.rows() - 1);
      touched.k.bottomRows(x.k.rows() - from)
          .setConstant(std::numeric_limits<TypeParam>::quiet_NaN());
      touched.v.bottomRows(x.k.rows() - from)
          .setConstant(std::numeric_limits<TypeParam>::infinity());
      const Matrix<TypeParam> got = outputs_of(touched);
      for (Index t = 0; t < x.q.rows(); ++t) {
        if (x.visible(t) <= from) {
          EXPECT_TRUE(same_bits<TypeParam>(got.row(t), clean.row(t))) << t << " from " << from;
        } else {
          EXPECT_TRUE(got.row(t).array().isNaN().all()) << t << " from " << from;
        }
      }
    }
  }
}

TYPED_TEST(IntraBlock, StripsOfQueriesAndLaterKeysChangeNoBit) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Block<TypeParam> x(seed);
    const Matrix<TypeParam> whole = outputs_of(x);
    for (const Index strip : {Index{1}, Index{5}, x.rng.integer(1, kStripTokens), kStripTokens}) {
      for (const bool early : {false, true}) {
        EXPECT_TRUE(same_bits(outputs_of(x, {.strip = strip, .early = early}), whole))
            << "seed " << seed << " strip " << strip << (early ? " early" : "");
      }
    }
  }
}

TYPED_TEST(IntraBlock, SlotsThatNobodyKeepsChangeNoBit) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Block<TypeParam> x(seed);
    Block<TypeParam> spread = x;
    spread.tokens = 3 * x.tokens;
    for (Index& slot : spread.query_slots) slot = 3 * slot + 1;
    for (Index& slot : spread.key_slots) slot = 3 * slot + 1;
    EXPECT_TRUE(same_bits(outputs_of(spread), outputs_of(x))) << "seed " << seed;
  }
}

TYPED_TEST(IntraBlock, OutputsAreTheSameWithoutDenominators) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Block<TypeParam> x(seed);
    const Matrix<TypeParam> with = outputs_of(x);
    const Matrix<TypeParam> without = outputs_of(x, {.denominators = false});
    EXPECT_EQ(without.leftCols(x.e), with.leftCols(x.e));
    EXPECT_EQ(without.rightCols(1), x.den_before);
  }
}

TYPED_TEST(IntraBlock, QueriesThatSeeNoKeyKeepTheirOutputs) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Block<TypeParam> x(seed);
    for (Index& slot : x.key_slots) slot += x.tokens;  // all of them later than any query
    x.tokens *= 2;
    const Matrix<TypeParam> got = outputs_of(x);
    EXPECT_EQ(got.leftCols(x.e), x.before);
    EXPECT_EQ(got.rightCols(1), x.den_before);
  }
}

}  // namespace
}  // namespace mhla
