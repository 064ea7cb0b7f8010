#include "mhla/stage/read_out.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::Memory;
using test::same_bits;

using detail::kStripTokens;
using detail::Lookahead;
using detail::QueryScratch;
using detail::Rows;

template <class A>
Rows<A> rows_of(Memory& memory, const Matrix<A>& x) {
  const Rows<A> rows("f", memory.arena, x.rows(), x.cols());
  for (Index r = 0; r < x.rows(); ++r) std::copy_n(x.data() + r * x.cols(), x.cols(), rows.row(r));
  return rows;
}

template <class A>
Matrix<A> matrix_of(const Rows<A>& rows, Index count, Index cols) {
  Matrix<A> m(count, cols);
  for (Index r = 0; r < count; ++r) std::copy_n(rows.row(r), cols, m.data() + r * cols);
  return m;
}

/// Queries times a mixture; everything around the outputs is checked to stay NaN.
template <class A>
Matrix<A> read(const Matrix<A>& queries, const Matrix<A>& mixture, const Lookahead& lookahead = {},
               Index column = 0) {
  Memory memory(200000);
  const Index count = queries.rows(), e = mixture.cols();
  const Rows<A> outputs("f", memory.arena, count + 1, e);
  detail::read_mixture(rows_of(memory, queries), count, queries.cols(), mixture.data(), e, outputs,
                       lookahead, column);
  for (Index r = 0; r <= count; ++r) {
    for (Index j = r < count ? e : 0; j < outputs.stride; ++j) {
      EXPECT_TRUE(std::isnan(outputs.row(r)[j])) << "written outside";
    }
  }
  return matrix_of(outputs, count, e);
}

template <class A>
class ReadMixture : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(ReadMixture, Accumulators);

TYPED_TEST(ReadMixture, IsTheProductWithinItsBound) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    test::Random rng(seed);
    const Index count = rng.integer(0, kStripTokens), d = rng.integer(0, 40),
                e = rng.integer(0, 40);
    const Matrix<TypeParam> q = rng.matrix<TypeParam>(count, d), s = rng.matrix<TypeParam>(d, e);
    const Matrix<TypeParam> got = read(q, s);
    const long double mu =
        static_cast<long double>(d + 1) * std::numeric_limits<TypeParam>::epsilon() / 2;
    for (Index t = 0; t < count; ++t) {
      for (Index j = 0; j < e; ++j) {
        long double sum = 0, size = 0;
        for (Index i = 0; i < d; ++i) {
          const long double term = static_cast<long double>(q(t, i)) * s(i, j);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_LE(std::abs(got(t, j) - sum), mu / (1 - mu) * size) << "seed " << seed;
      }
    }
  }
}

TYPED_TEST(ReadMixture, BitsOfATokenDoNotDependOnItsStrip) {
  test::Random rng(1);
  const Matrix<TypeParam> q = rng.matrix<TypeParam>(kStripTokens, 19);
  const Matrix<TypeParam> s = rng.matrix<TypeParam>(19, 37);
  const Matrix<TypeParam> together = read(q, s);
  for (Index t = 0; t < kStripTokens; ++t) {
    EXPECT_TRUE(same_bits<TypeParam>(read<TypeParam>(q.row(t), s), together.row(t)));
    const Index cut = rng.integer(1, kStripTokens);
    EXPECT_TRUE(same_bits<TypeParam>(read<TypeParam>(q.topRows(cut), s), together.topRows(cut)));
  }
}

TYPED_TEST(ReadMixture, ANaNOfATokenStaysItsOwn) {
  test::Random rng(2);
  Matrix<TypeParam> q = rng.matrix<TypeParam>(21, 5);
  const Matrix<TypeParam> s = rng.matrix<TypeParam>(5, 9);
  Matrix<TypeParam> expected = read(q, s);
  q(13, 2) = std::numeric_limits<TypeParam>::quiet_NaN();
  const Matrix<TypeParam> got = read(q, s);
  for (Index t = 0; t < 21; ++t) {
    if (t == 13) {
      EXPECT_TRUE(got.row(t).array().isNaN().all());
    } else {
      EXPECT_EQ(got.row(t), expected.row(t));
    }
  }
}

TYPED_TEST(ReadMixture, OfNoFeaturesIsZero) {
  const Matrix<TypeParam> got = read(Matrix<TypeParam>(4, 0), Matrix<TypeParam>(0, 7));
  EXPECT_EQ(got, (Matrix<TypeParam>::Zero(4, 7)));
}

/// A strip whose queries, mixture and denominators are given, for write_mixture.
template <class A>
struct Strip {
  Matrix<A> q, s;  // [count,D], [D,E]
  std::vector<A> denominators;
  std::vector<Index> tokens;  // every third, backwards

  Strip(test::Random& rng, Index count, Index d, Index e)
      : q(rng.matrix<A>(count, d)), s(rng.matrix<A>(d, e)) {
    for (Index t = 0; t < count; ++t) {
      denominators.push_back(static_cast<A>((rng.chance(0.5) ? 1 : -1) * rng.uniform(0.5, 2)));
      tokens.push_back(3 * (count - t) - 1);
    }
  }
  Index out_rows() const { return 3 * q.rows() + 1; }

  template <class T>
  void write(MatrixView<T> out, const Lookahead& lookahead = {}, Index column = 0) const {
    Memory memory(200000);
    const QueryScratch<A> scratch("f", memory.arena, 0, q.cols(), 0, s.cols());
    for (Index t = 0; t < q.rows(); ++t) {
      std::copy_n(q.data() + t * q.cols(), q.cols(), scratch.queries.row(t));
    }
    std::copy(denominators.begin(), denominators.end(), scratch.denominators);
    detail::write_mixture(scratch, tokens.data(), q.rows(), q.cols(), s.data(), lookahead, column,
                          out);
  }
  /// All of out's rows, written through a view with the strides of `To`.
  template <class T, class To = Matrix<T>>
  Matrix<T> written(const Lookahead& lookahead = {}, Index column = 0) const {
    To out = test::unwritten<T>(out_rows(), s.cols());
    write<T>(MatrixView<T>(out), lookahead, column);
    return out;
  }
};

template <class T>
using ColumnMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;

template <class T>
bool same(T x, T y) {
  using A = accumulator_t<T>;
  const A a = static_cast<A>(x), b = static_cast<A>(y);
  return (a == b && std::signbit(a) == std::signbit(b)) || (std::isnan(a) && std::isnan(b));
}

template <class T>
class WriteMixture : public testing::Test {};
using Scalars = testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(WriteMixture, Scalars);

TYPED_TEST(WriteMixture, IsTheQuotientWithinItsBoundAndNothingElseIsWritten) {
  using A = accumulator_t<TypeParam>;
  using Limits = std::numeric_limits<TypeParam>;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    test::Random rng(seed);
    const Index d = rng.integer(0, 40), e = rng.integer(0, 70);
    const Strip<A> x(rng, rng.integer(0, kStripTokens), d, e);
    Matrix<TypeParam> out = test::unwritten<TypeParam>(x.out_rows(), e + 2);
    x.write(MatrixView<TypeParam>(out.data(), x.out_rows(), e, e + 2));
    // The chain, the reciprocal and the product round; so does storing in a narrower type.
    const long double mu = static_cast<long double>(d + 3) * std::numeric_limits<A>::epsilon() / 2;
    const long double roundoff = std::is_same_v<TypeParam, A>             ? 0
                                 : std::is_same_v<TypeParam, Eigen::half> ? 0x1p-11L
                                                                          : 0x1p-8L;
    const long double least =
        std::is_same_v<TypeParam, A> ? 0 : static_cast<A>(Limits::denorm_min()) / 2;
    Index written = 0;
    for (Index i = 0; i < out.size(); ++i) {
      written += std::isnan(static_cast<A>(out.data()[i])) ? 0 : 1;
    }
    EXPECT_EQ(written, x.q.rows() * e) << "seed " << seed;
    for (Index t = 0; t < x.q.rows(); ++t) {
      const auto i = static_cast<std::size_t>(t);
      for (Index j = 0; j < e; ++j) {
        long double exact = 0, bound = 0;
        for (Index k = 0; k < d; ++k) {
          const long double term = static_cast<long double>(x.q(t, k)) * x.s(k, j);
          exact += term / x.denominators[i];
          bound += mu / (1 - mu) * std::abs(term / x.denominators[i]);
        }
        bound += roundoff * (std::abs(exact) + bound) + least;
        ASSERT_LE(std::abs(static_cast<A>(out(x.tokens[i], j)) - exact), bound) << "seed " << seed;
      }
    }
  }
}

TYPED_TEST(WriteMixture, ADenominatorWithoutANormalReciprocalDividesAllOthersMultiply) {
  using A = accumulator_t<TypeParam>;
  using Limits = std::numeric_limits<A>;
  const A infinity = Limits::infinity();
  test::Random rng(4);
  for (const A denominator :
       {A(0), -A(0), Limits::denorm_min(), 9 * Limits::denorm_min(), Limits::min(), Limits::max(),
        -Limits::max() / 3, 1 / Limits::min(), infinity, -infinity, Limits::quiet_NaN(), A(3)}) {
    for (const Index count : {1, 5, 16, 33, 64}) {
      Strip<A> x(rng, count, 3, 19);
      x.q.row(0).setZero();  // 0 / 0
      for (std::size_t t = 0; t < x.tokens.size(); t += 3) x.denominators[t] = denominator;
      const Matrix<A> sums = read(x.q, x.s);
      const Matrix<TypeParam> got = x.template written<TypeParam>();
      for (Index t = 0; t < count; ++t) {
        const auto i = static_cast<std::size_t>(t);
        const A reciprocal = 1 / x.denominators[i];
        for (Index j = 0; j < 19; ++j) {
          const A expected =
              std::isnormal(reciprocal) ? sums(t, j) * reciprocal : sums(t, j) / x.denominators[i];
          EXPECT_TRUE(same(got(x.tokens[i], j), static_cast<TypeParam>(expected)))
              << sums(t, j) << " / " << x.denominators[i] << " = " << got(x.tokens[i], j);
        }
      }
      // In place or by way of scratch.
      const auto scattered = x.template written<TypeParam, ColumnMajor<TypeParam>>();
      for (Index i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(same(scattered.data()[i], got.data()[i])) << "of " << denominator;
      }
    }
  }
}

TYPED_TEST(WriteMixture, NeitherStridesNorWhatIsAskedForMeanwhileChangeABit) {
  using A = accumulator_t<TypeParam>;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    test::Random rng(seed);
    const Strip<A> x(rng, rng.integer(0, kStripTokens), rng.integer(0, 40), rng.integer(0, 70));
    const Matrix<TypeParam> expected = x.template written<TypeParam>();
    EXPECT_TRUE(same_bits(x.template written<TypeParam, ColumnMajor<TypeParam>>(), expected));
    Matrix<TypeParam> backwards = test::unwritten<TypeParam>(x.out_rows(), x.s.cols());
    x.write(MatrixView<TypeParam>(backwards.data() + 3 * x.q.rows() * x.s.cols(), x.out_rows(),
                                  x.s.cols(), -x.s.cols()));
    EXPECT_TRUE(same_bits<TypeParam>(backwards.colwise().reverse(), expected));

    const Contiguous blocks(200, 50);
    detail::StripCursor strip(blocks, 1, {});
    const auto q = rng.matrix<TypeParam>(200, 30), out = rng.matrix<TypeParam>(200, 50);
    const Lookahead lookahead(strip.ahead(), MatrixView<const TypeParam>(q),
                              MatrixView<const TypeParam>(out));
    for (const Index column : {0, 1, 7}) {
      EXPECT_TRUE(same_bits(x.template written<TypeParam>(lookahead, column), expected));
      EXPECT_TRUE(same_bits(read(x.q, x.s, lookahead, column), read(x.q, x.s)));
    }
  }
}

TYPED_TEST(WriteMixture, EpsIsTheDenominatorWhereNoKeysAre) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(5);
  const Matrix<A> no_keys = Matrix<A>::Zero(1, 3);
  for (const A eps : {A(0), A(0.125)}) {
    Strip<A> x(rng, 6, 3, 5);
    Memory memory(10000);
    detail::key_sum_denominators(rows_of(memory, x.q), 6, 3, no_keys.data(), eps,
                                 x.denominators.data());
    const Matrix<A> sums = read(x.q, x.s);
    const Matrix<TypeParam> got = x.template written<TypeParam>();
    for (Index t = 0; t < 6; ++t) {
      for (Index j = 0; j < 5; ++j) {
        EXPECT_TRUE(same(got(x.tokens[static_cast<std::size_t>(t)], j),
                         static_cast<TypeParam>(sums(t, j) / eps)));
      }
    }
  }
}

template <class T>
class GatherQueries : public testing::Test {};
TYPED_TEST_SUITE(GatherQueries, Scalars);

TYPED_TEST(GatherQueries, ScalesTheFeaturesOfEachToken) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(3);
  const Matrix<TypeParam> q = rng.matrix<TypeParam>(9, 21);
  const Index tokens[] = {8, 0, 5};
  for (const A factor : {A(1), A(0.125), A(0.3), A(0)}) {
    Memory memory(100000);
    A* const raw = memory.arena.template take<A>("f", 21);
    const Rows<A> queries("f", memory.arena, 3, 21);
    detail::gather_queries<TypeParam>(q, tokens, 3, EluPlusOne{}, factor, raw, queries);
    for (Index s = 0; s < 3; ++s) {
      A x[21], y[21];
      for (Index j = 0; j < 21; ++j) x[j] = static_cast<A>(q(tokens[s], j));
      EluPlusOne{}(x, y, 21);
      for (Index j = 0; j < 21; ++j) EXPECT_EQ(queries.row(s)[j], factor * y[j]);
      for (Index j = 21; j < queries.stride; ++j) EXPECT_TRUE(std::isnan(queries.row(s)[j]));
    }
  }
}

TEST(ReadRows, AreReadTogetherInTheirOwnOrder) {
  for (Index s = 0; s < kStripTokens; ++s) {
    EXPECT_EQ(detail::kOwnRows[static_cast<std::size_t>(s)], s);
  }
}

TEST(QueryScratch, BuffersDoNotOverlap) {
  Memory memory(400000);
  const QueryScratch<float> scratch("f", memory.arena, 11, 17, 5, 33);
  const std::vector<std::pair<const float*, Index>> buffers{
      {scratch.raw, 11},
      {scratch.queries.data, kStripTokens * scratch.queries.stride},
      {scratch.outputs.data, kStripTokens * scratch.outputs.stride},
      {scratch.denominators, kStripTokens},
      {scratch.factors, kStripTokens},
      {scratch.normalizer_queries.data, kStripTokens * scratch.normalizer_queries.stride}};
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto [x, x_size] = buffers[i];
      const auto [y, y_size] = buffers[j];
      EXPECT_TRUE(x + x_size <= y || y + y_size <= x) << i << " and " << j;
    }
  }
  EXPECT_GE(scratch.queries.stride, 17);
  EXPECT_GE(scratch.normalizer_queries.stride, 5);
  EXPECT_GE(scratch.outputs.stride, 33);
}

TEST(QueryScratch, TheDenominatorReadsTheSameQueriesUnlessItHasItsOwn) {
  Memory memory(400000);
  const QueryScratch<double> scratch("f", memory.arena, 4, 4, 0, 6);
  EXPECT_EQ(scratch.normalizer_queries.data, scratch.queries.data);
  EXPECT_EQ(scratch.normalizer_queries.stride, scratch.queries.stride);
}

}  // namespace
}  // namespace mhla
