#include "mhla/stage/read_out.hpp"

#include <gtest/gtest.h>

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
Matrix<A> read(const Matrix<A>& queries, const Matrix<A>& mixture) {
  Memory memory(200000);
  const Index count = queries.rows(), e = mixture.cols();
  const Rows<A> outputs("f", memory.arena, count + 1, e);
  detail::read_mixture(rows_of(memory, queries), count, queries.cols(), mixture.data(), e, outputs);
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

template <class T>
class GatherQueries : public testing::Test {};
using Scalars = testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
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

TEST(QueryScratch, BuffersDoNotOverlap) {
  Memory memory(400000);
  const QueryScratch<float> scratch("f", memory.arena, 11, 17, 5, 33);
  const std::vector<std::pair<const float*, Index>> buffers{
      {scratch.raw, 11},
      {scratch.queries.data, kStripTokens * scratch.queries.stride},
      {scratch.outputs.data, kStripTokens * scratch.outputs.stride},
      {scratch.denominators, kStripTokens},
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
