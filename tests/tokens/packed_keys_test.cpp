#include "mhla/tokens/packed_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/chain.hpp"
#include "support/exact.hpp"
#include "support/placed.hpp"
#include "support/seeds.hpp"

namespace mhla {
namespace {

using detail::kStripTokens;
using detail::PackedKeys;
using detail::Rows;
using test::kNaN;
using test::Memory;

constexpr Index kCounts[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 200};

/// n kept keys among more tokens, packed strip by strip.
template <class A, class T = A>
struct Keys {
  Index n, d, e;
  A weight;
  std::vector<Index> tokens, places;
  Matrix<A> k;  // [n,D]
  Matrix<T> v;  // [all tokens, E]
  Memory memory;
  PackedKeys<A> packed;

  Keys(test::Random& rng, Index n_)
      : n(n_),
        d(rng.integer(1, 40)),
        e(rng.integer(0, 40)),
        weight(static_cast<A>(rng.uniform(-1, 2))),
        k(rng.matrix<A>(n, d)),
        memory(600000),
        packed("f", memory.arena, n, d, e) {
    for (Index j = 0, token = 0, place = 0; j < n; ++j) {
      tokens.push_back(token += rng.integer(1, 3));
      places.push_back(place += rng.integer(1, 3));
    }
    v = rng.matrix<T>(n == 0 ? 1 : tokens.back() + 1, e);
    pack();
  }

  /// \param dense  values are passed as dense rows, not as tokens
  void pack(bool dense = false) {
    packed.clear();
    for (Index begin = 0; begin < n; begin += kStripTokens) {
      const Index count = std::min(kStripTokens, n - begin);
      Memory strip(100000);
      const Rows<A> keys = test::rows_of<A>(strip, k.middleRows(begin, count), kStripTokens);
      Matrix<A> values(count, e);
      for (Index s = 0; s < count; ++s) {
        for (Index j = 0; j < e; ++j) values(s, j) = value(begin + s, j);
      }
      if (dense) {
        packed.append(keys, test::rows_of(strip, values), places.data() + begin, count, weight);
      } else {
        packed.template append<T>(keys, v, tokens.data() + begin, places.data() + begin, count,
                                  weight);
      }
    }
  }
  A value(Index key, Index j) const {
    return static_cast<A>(v(tokens[static_cast<std::size_t>(key)], j));
  }
};

template <class A>
class PackedKeysOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(PackedKeysOf, Accumulators);

template <class A, class T>
void expect_contents(const Keys<A, T>& x) {
  ASSERT_EQ(x.packed.count(), x.n);
  ASSERT_EQ(x.packed.tiles(), (x.n + kStripTokens - 1) / kStripTokens);
  for (Index t = 0; t < x.packed.tiles(); ++t) {
    const Index first = t * kStripTokens;
    ASSERT_EQ(x.packed.size(t), std::min(kStripTokens, x.n - first));
    for (Index s = 0; s < kStripTokens; ++s) {
      const bool kept = first + s < x.n;
      for (Index j = 0; j < x.d; ++j) {
        ASSERT_EQ(x.packed.keys(t).row(j)[s], kept ? x.weight * x.k(first + s, j) : 0);
      }
      for (Index j = 0; kept && j < x.e; ++j) {
        ASSERT_EQ(x.packed.values(t).row(s)[j], x.value(first + s, j));
      }
    }
  }
  test::expect_nothing_beside(x.packed.values(0), detail::round_up(x.n, kStripTokens), x.n, x.e);
  for (Index place = 0; place < 3 * x.n + 2; ++place) {
    const auto visible =
        std::count_if(x.places.begin(), x.places.end(), [=](Index p) { return p <= place; });
    ASSERT_EQ(x.packed.visible(place), visible) << "place " << place << " of " << x.n << " keys";
  }
}

TYPED_TEST(PackedKeysOf, HoldTheWeightedKeysTheirValuesAndTheirPlaces) {
  test::Random rng(1);
  for (const Index n : kCounts) {
    SCOPED_TRACE(n);
    Keys<TypeParam> tokens(rng, n), dense(rng, n);
    expect_contents(tokens);
    expect_contents(Keys<TypeParam, Eigen::bfloat16>(rng, n));
    dense.memory = Memory(600000);
    dense.packed = PackedKeys<TypeParam>("f", dense.memory.arena, n, dense.d, dense.e);
    dense.pack(true);
    expect_contents(dense);
  }
  EXPECT_EQ(PackedKeys<TypeParam>().count(), 0);
}

TEST(PackedKeys, VisibleKeysOfATileAreThoseThatAreLeftForIt) {
  for (const Index visible : kCounts) {
    Index left = visible;
    for (Index t = 0; t < 5; ++t) {
      const Index in_tile = PackedKeys<float>::visible_in_tile(visible, t);
      EXPECT_EQ(in_tile, std::min(left, kStripTokens));
      left -= in_tile;
    }
  }
}

/// Number of keys that each query sees, of `size`, ascending: equal, one more each, or with jumps.
std::vector<Index> random_seen(test::Random& rng, Index rows, Index size) {
  const Index kind = rng.integer(0, 2), same = rng.integer(0, size);
  std::vector<Index> seen;
  for (Index r = 0; r < rows; ++r) {
    const Index ragged = kind == 1 ? r : rng.integer(0, size);
    seen.push_back(kind == 0 ? same : std::min(ragged, size));
  }
  std::sort(seen.begin(), seen.end());
  return seen;
}

TYPED_TEST(PackedKeysOf, ValuesOfTheKeysThatAQuerySeesAreAddedAndNoOthers) {
  using A = TypeParam;
  for (const std::uint64_t seed : test::seeds(200)) {
    test::Random rng(seed);
    Keys<A> x(rng, kCounts[1 + seed % 9]);
    const Index rows = rng.integer(0, 64), t = rng.integer(0, x.packed.tiles() - 1);
    const Index size = x.packed.size(t), poisoned = rng.integer(0, size - 1);
    const std::vector<Index> seen = random_seen(rng, rows, size);
    x.v.row(x.tokens[static_cast<std::size_t>(t * kStripTokens + poisoned)]).setConstant(kNaN<A>);
    x.pack();
    Matrix<A> scores = Matrix<A>::Constant(rows, kStripTokens, kNaN<A>);
    Matrix<A> expected = rng.matrix<A>(rows, x.e);
    Memory memory(200000);
    const Rows<A> outputs = test::rows_of(memory, expected, rows + 1);
    for (Index r = 0; r < rows; ++r) {
      const Index count = seen[static_cast<std::size_t>(r)];
      scores.row(r).head(count) = rng.matrix<A>(1, count);
      for (Index s = 0; s < count; ++s) {
        for (Index j = 0; j < x.e; ++j) {
          expected(r, j) =
              test::step<A>(scores(r, s), x.value(t * kStripTokens + s, j), expected(r, j));
        }
      }
    }
    x.packed.add_values(test::rows_of(memory, scores), seen.data(), rows, t, outputs);
    test::expect_nothing_beside(outputs, rows + 1, rows, x.e);
    for (Index r = 0; r < rows; ++r) {
      const bool reached = seen[static_cast<std::size_t>(r)] > poisoned;
      for (Index j = 0; j < x.e; ++j) {
        ASSERT_EQ(std::isnan(outputs.row(r)[j]), reached) << "seed " << seed;
        ASSERT_TRUE(test::same_number(outputs.row(r)[j], expected(r, j))) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace mhla
