#include "mhla/tokens/packed_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

constexpr Index kCounts[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 200};

/// n kept keys among more tokens, and tiles with all of them, brought in strip by strip.
template <class A, class T = A>
struct Keys {
  Index n, d, e;
  A weight;
  std::vector<Index> tokens, places;
  Matrix<A> k;  // [n,D]
  Matrix<T> v;  // [all tokens, E]
  Memory memory;
  KeyTiles<A> tiles;

  Keys(test::Random& rng, Index n_)
      : n(n_),
        d(rng.integer(1, 40)),
        e(rng.integer(0, 40)),
        weight(static_cast<A>(rng.uniform(-1, 2))),
        k(rng.matrix<A>(n, d)),
        memory(600000),
        tiles("f", memory.arena, n, d, e) {
    for (Index j = 0, token = 0, place = 0; j < n; ++j) {
      tokens.push_back(token += rng.integer(1, 3));
      places.push_back(place += rng.integer(1, 3));
    }
    v = rng.matrix<T>(n == 0 ? 1 : tokens.back() + 1, e);
    fill();
  }

  void fill() {
    tiles.clear();
    for (Index begin = 0; begin < n; begin += kStripTokens) {
      const Index count = std::min(kStripTokens, n - begin);
      Memory strip(50000);
      const Rows<A> rows("f", strip.arena, kStripTokens, d);
      for (Index s = 0; s < count; ++s) std::copy_n(&k(begin + s, 0), d, rows.row(s));
      tiles.template append<T>(rows, v, tokens.data() + begin, places.data() + begin, count,
                               weight);
    }
  }
  A value(Index key, Index j) const {
    return static_cast<A>(v(tokens[static_cast<std::size_t>(key)], j));
  }
};

/// Scores or outputs of some queries: rows of scratch around which all stays NaN.
template <class A>
struct Scratch {
  Memory memory{200000};
  Rows<A> rows;

  Scratch(Index count, Index cols) : rows("f", memory.arena, count, cols) {}
  explicit Scratch(const Matrix<A>& m) : Scratch(m.rows(), m.cols()) {
    for (Index r = 0; r < m.rows(); ++r)
      std::copy_n(m.data() + r * m.cols(), m.cols(), rows.row(r));
  }
  Matrix<A> leading(Index count, Index cols) const {
    Matrix<A> m(count, cols);
    for (Index r = 0; r < count; ++r) std::copy_n(rows.row(r), cols, m.data() + r * cols);
    return m;
  }
};

/// Scores of `queries` with the first `cols` keys of tile t.
template <class A>
Matrix<A> scores_of(const KeyTiles<A>& tiles, const Matrix<A>& queries, Index t, Index cols) {
  const Scratch<A> q(queries), scores(queries.rows() + 1, kStripTokens);
  tiles.score(q.rows, queries.rows(), t, cols, scores.rows);
  for (Index r = 0; r <= queries.rows(); ++r) {
    const Index written = r < queries.rows() ? detail::round_up(cols, detail::kRowAlignment) : 0;
    for (Index j = written; j < kStripTokens; ++j) EXPECT_TRUE(std::isnan(scores.rows.row(r)[j]));
  }
  return scores.leading(queries.rows(), cols);
}

/// `before`, to which tile t has been added with these scores [rows, 64].
template <class A>
Matrix<A> sums_of(const KeyTiles<A>& tiles, const Matrix<A>& scores, const std::vector<Index>& seen,
                  Index t, const Matrix<A>& before) {
  const Scratch<A> s(scores), outputs(before);
  tiles.add_values(s.rows, seen.data(), scores.rows(), t, outputs.rows);
  for (Index r = 0; r < before.rows(); ++r) {
    for (Index j = before.cols(); j < outputs.rows.stride; ++j) {
      EXPECT_TRUE(std::isnan(outputs.rows.row(r)[j])) << "written outside";
    }
  }
  return outputs.leading(before.rows(), before.cols());
}

/// How many of `size` keys each query sees, ascending: all alike, one more each, or with jumps.
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

template <class A>
class KeyTilesOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(KeyTilesOf, Accumulators);

template <class A, class T>
void expect_contents(const Keys<A, T>& x) {
  ASSERT_EQ(x.tiles.count(), x.n);
  ASSERT_EQ(x.tiles.tiles(), (x.n + kStripTokens - 1) / kStripTokens);
  for (Index t = 0; t < x.tiles.tiles(); ++t) {
    const Index first = t * kStripTokens;
    ASSERT_EQ(x.tiles.size(t), std::min(kStripTokens, x.n - first));
    for (Index s = 0; s < kStripTokens; ++s) {
      const bool kept = first + s < x.n;
      for (Index j = 0; j < x.d; ++j) {
        ASSERT_EQ(x.tiles.keys(t).row(j)[s], kept ? x.weight * x.k(first + s, j) : 0);
      }
      for (Index j = 0; kept && j < x.e; ++j) {
        ASSERT_EQ(x.tiles.values(t).row(s)[j], x.value(first + s, j));
      }
    }
  }
}

TYPED_TEST(KeyTilesOf, HoldTheWeightedKeysAndTheValues) {
  test::Random rng(1);
  for (const Index n : kCounts) {
    SCOPED_TRACE(n);
    Keys<TypeParam> x(rng, n);
    expect_contents(x);
    x.n /= 3;  // another, shorter block in the same memory
    x.k = rng.matrix<TypeParam>(x.n, x.d);
    x.fill();
    expect_contents(x);
  }
  expect_contents(Keys<float, Eigen::bfloat16>(rng, 70));
  expect_contents(Keys<float, Eigen::half>(rng, 130));
  EXPECT_EQ(KeyTiles<TypeParam>().count(), 0);
}

TYPED_TEST(KeyTilesOf, ValuesMayBeDenseRowsAlready) {
  test::Random rng(3);
  for (const Index n : kCounts) {
    SCOPED_TRACE(n);
    Keys<TypeParam> x(rng, n);
    x.memory = Memory(600000);
    x.tiles = KeyTiles<TypeParam>("f", x.memory.arena, n, x.d, x.e);
    for (Index begin = 0; begin < n; begin += kStripTokens) {
      const Index count = std::min(kStripTokens, n - begin);
      Memory strip(100000);
      const Rows<TypeParam> keys("f", strip.arena, kStripTokens, x.d);
      const Rows<TypeParam> values("f", strip.arena, kStripTokens, x.e);
      std::fill_n(values.data, kStripTokens * values.stride, TypeParam(7));  // not to be copied
      for (Index s = 0; s < count; ++s) {
        std::copy_n(&x.k(begin + s, 0), x.d, keys.row(s));
        for (Index j = 0; j < x.e; ++j) values.row(s)[j] = x.value(begin + s, j);
      }
      x.tiles.append(keys, values, x.places.data() + begin, count, x.weight);
    }
    expect_contents(x);
    for (Index place = 0; place < 3 * n + 2; ++place) {
      const auto visible =
          std::count_if(x.places.begin(), x.places.end(), [=](Index p) { return p <= place; });
      ASSERT_EQ(x.tiles.visible(place), visible);
    }
    const Rows<TypeParam> values = x.tiles.values(0);
    for (Index s = 0; s < detail::round_up(n, kStripTokens); ++s) {
      for (Index j = s < n ? x.e : 0; j < values.stride; ++j) {
        ASSERT_TRUE(std::isnan(values.row(s)[j])) << "written outside";
      }
    }
  }
}

TYPED_TEST(KeyTilesOf, VisibleCountsTheKeysUpToAPlace) {
  test::Random rng(2);
  for (const Index n : kCounts) {
    const Keys<TypeParam> x(rng, n);
    for (Index place = 0; place < 3 * n + 2; ++place) {
      const auto visible =
          std::count_if(x.places.begin(), x.places.end(), [=](Index p) { return p <= place; });
      ASSERT_EQ(x.tiles.visible(place), visible) << "place " << place << " of " << n << " keys";
    }
  }
}

TYPED_TEST(KeyTilesOf, ScoresAreProductsWithTheKeysOfATile) {
  constexpr long double u = std::numeric_limits<TypeParam>::epsilon() / 2;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    test::Random rng(seed);
    const Keys<TypeParam> x(rng, kCounts[1 + seed % 9]);
    const Matrix<TypeParam> q = rng.matrix<TypeParam>(rng.integer(0, 64), x.d);
    const Index t = rng.integer(0, x.tiles.tiles() - 1), cols = rng.integer(0, x.tiles.size(t));
    const Matrix<TypeParam> got = scores_of(x.tiles, q, t, cols);
    const long double mu = static_cast<long double>(x.d + 1) * u;
    for (Index r = 0; r < q.rows(); ++r) {
      for (Index j = 0; j < cols; ++j) {
        long double sum = 0, size = 0;
        for (Index i = 0; i < x.d; ++i) {
          const long double term =
              static_cast<long double>(x.weight) * q(r, i) * x.k(t * kStripTokens + j, i);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_LE(std::abs(got(r, j) - sum), mu / (1 - mu) * size) << "seed " << seed;
      }
    }
  }
}

TYPED_TEST(KeyTilesOf, ValuesAreAddedOfTheKeysThatEachQuerySees) {
  constexpr long double u = std::numeric_limits<TypeParam>::epsilon() / 2;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    test::Random rng(seed);
    const Keys<TypeParam> x(rng, kCounts[1 + seed % 9]);
    const Index rows = rng.integer(0, 64), t = rng.integer(0, x.tiles.tiles() - 1);
    const std::vector<Index> seen = random_seen(rng, rows, x.tiles.size(t));
    const Matrix<TypeParam> scores = rng.matrix<TypeParam>(rows, kStripTokens),
                            before = rng.matrix<TypeParam>(rows, x.e),
                            got = sums_of(x.tiles, scores, seen, t, before);
    for (Index r = 0; r < rows; ++r) {
      const Index count = seen[static_cast<std::size_t>(r)];
      const long double mu = static_cast<long double>(count + 1) * u;
      for (Index j = 0; j < x.e; ++j) {
        long double sum = before(r, j), size = std::abs(sum);
        for (Index s = 0; s < count; ++s) {
          const long double term =
              static_cast<long double>(scores(r, s)) * x.value(t * kStripTokens + s, j);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_LE(std::abs(got(r, j) - sum), count == 0 ? 0 : mu / (1 - mu) * size) << seed;
      }
    }
  }
}

TYPED_TEST(KeyTilesOf, ANaNReachesTheQueriesThatSeeItsKeyAndNoOther) {
  const auto nan = std::numeric_limits<TypeParam>::quiet_NaN();
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    Keys<TypeParam> x(rng, kCounts[1 + seed % 9]);
    const Index rows = rng.integer(1, 64), t = rng.integer(0, x.tiles.tiles() - 1);
    const std::vector<Index> seen = random_seen(rng, rows, x.tiles.size(t));
    const Matrix<TypeParam> q = rng.matrix<TypeParam>(rows, x.d),
                            before = rng.matrix<TypeParam>(rows, x.e);
    const auto read = [&] {
      Matrix<TypeParam> scores(rows, kStripTokens);
      scores.setConstant(nan);
      scores.leftCols(seen.back()) = scores_of(x.tiles, q, t, seen.back());
      return sums_of(x.tiles, scores, seen, t, before);
    };
    const Matrix<TypeParam> clean = read();
    const Index poisoned = rng.integer(0, x.tiles.size(t) - 1), key = t * kStripTokens + poisoned;
    if (rng.chance(0.5)) {
      x.k.row(key).setConstant(nan);
    } else {
      x.v.row(x.tokens[static_cast<std::size_t>(key)]).setConstant(nan);
    }
    x.fill();
    const Matrix<TypeParam> got = read();
    for (Index r = 0; r < rows; ++r) {
      if (seen[static_cast<std::size_t>(r)] > poisoned) {
        EXPECT_TRUE(got.row(r).array().isNaN().all()) << r;
      } else {
        EXPECT_TRUE(same_bits<TypeParam>(got.row(r), clean.row(r))) << r;
      }
    }
  }
}

TYPED_TEST(KeyTilesOf, BitsOfAQueryDoNotDependOnTheOthers) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const Keys<TypeParam> x(rng, 64);
    const Index rows = rng.integer(1, 64);
    const std::vector<Index> seen = random_seen(rng, rows, 64);
    const Matrix<TypeParam> q = rng.matrix<TypeParam>(rows, x.d),
                            before = rng.matrix<TypeParam>(rows, x.e),
                            scores = scores_of(x.tiles, q, 0, 64),
                            together = sums_of(x.tiles, scores, seen, 0, before);
    for (Index first = 0, count = 1; first < rows; first += count, count = rng.integer(1, 20)) {
      count = std::min(count, rows - first);
      const Matrix<TypeParam> own =
          scores_of<TypeParam>(x.tiles, q.middleRows(first, count), 0, 64);
      EXPECT_TRUE(same_bits<TypeParam>(own, scores.middleRows(first, count)));
      const std::vector<Index> own_seen(seen.begin() + first, seen.begin() + first + count);
      const Matrix<TypeParam> sums =
          sums_of<TypeParam>(x.tiles, own, own_seen, 0, before.middleRows(first, count));
      EXPECT_TRUE(same_bits<TypeParam>(sums, together.middleRows(first, count)));
    }
  }
}

}  // namespace
}  // namespace mhla
