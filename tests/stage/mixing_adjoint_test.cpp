#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/stage/mixing.hpp"
#include "support/exact.hpp"
#include "support/outputs.hpp"

namespace mhla {
namespace {

using test::Memory;
using test::same_bits;

using detail::kGroupBlocks;
using detail::MixingGradient;
using detail::MixingGroup;
using detail::Reach;
using detail::RightOperand;

template <class A>
constexpr A kNaN = std::numeric_limits<A>::quiet_NaN();

/// A random dense or banded matrix, of which the leading blocks are mixed.
template <class A>
struct Mix {
  test::Random rng;
  Index rows, cols;  // of the matrix
  Reach reach;
  Index queries, keys;  // leading blocks, as many of both where only earlier ones are read
  MixingMatrix<A> m;

  explicit Mix(std::uint64_t seed)
      : rng(seed),
        rows(rng.integer(1, 40)),
        cols(rng.integer(1, 40)),
        reach(rng.chance(0.5) ? Reach::kAll : Reach::kEarlier),
        queries(rng.chance(0.5) ? rows : rng.integer(0, rows)),
        keys(rng.chance(0.5) ? cols : rng.integer(0, cols)),
        m(MixingMatrix<A>::banded(test::integers<A>(rng, rows, cols), bandwidth(), bandwidth())) {
    if (reach == Reach::kEarlier) queries = keys = std::min(queries, keys);
  }
  Index bandwidth() { return rng.chance(0.5) ? rng.integer(0, 6) : 40; }

  bool reads(Index i, Index b) const {
    return b >= m.first(i) && b < m.last(i) && i < queries && b < keys &&
           (reach == Reach::kAll || b < i);
  }
};

/// sum_i m_ib x_i for all key blocks b, made in groups.   // [keys,cols]
template <class A>
Matrix<A> carried_back(const Mix<A>& p, const Matrix<A>& x, Index size) {
  Matrix<A> result = test::unwritten<A>(p.keys, x.cols());
  for (Index begin = 0; begin < p.keys; begin += size) {
    const Index end = std::min(begin + size, p.keys);
    Memory memory(60000);
    const detail::Coefficients<A> room("f", memory.arena, end - begin, p.queries);
    const A* const beside = memory.arena.template take<A>("f", 16);
    const auto group = MixingGroup<A>::of_columns(p.m, begin, end, p.reach, p.queries, room);
    EXPECT_EQ(group.rows(), end - begin);
    group.mix({result.data() + begin * x.cols(), x.cols()}, {x.data(), x.cols()}, x.cols());
    EXPECT_TRUE(std::all_of(beside, beside + 16, [](A a) { return std::isnan(a); }));
  }
  return result;
}

template <class A>
class MixingAdjoint : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(MixingAdjoint, Accumulators);

TYPED_TEST(MixingAdjoint, ReadersAreTheRowsThatCanReadAColumn) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Mix<TypeParam> p(seed);
    for (Index b = 0; b < p.keys; ++b) {
      const detail::ColumnSpan rows = detail::readers(p.m, b, p.reach, p.queries);
      ASSERT_GE(rows.begin, 0);
      ASSERT_LE(rows.begin, rows.end);
      for (Index i = 0; i < p.rows; ++i) {
        ASSERT_EQ(i >= rows.begin && i < rows.end, p.reads(i, b))
            << "seed " << seed << ": " << i << ", " << b;
      }
    }
  }
}

TYPED_TEST(MixingAdjoint, ColumnsMixWhatTheirReadersHave) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mix<TypeParam> p(seed);
    const auto x = test::integers<TypeParam>(p.rng, p.queries, p.rng.integer(0, 40));
    Matrix<TypeParam> expected = Matrix<TypeParam>::Zero(p.keys, x.cols());
    for (Index b = 0; b < p.keys; ++b) {
      for (Index i = 0; i < p.queries; ++i) {
        if (p.reads(i, b)) expected.row(b) += p.m(i, b) * x.row(i);
      }
    }
    for (const Index size : {Index{1}, Index{5}, kGroupBlocks, Index{40}}) {
      EXPECT_EQ(carried_back(p, x, size), expected) << "groups of " << size;
    }
  }
}

TYPED_TEST(MixingAdjoint, BitsOfAColumnDoNotDependOnItsGroup) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Mix<TypeParam> p(seed);
    p.m.for_each([&](TypeParam& c) { c = static_cast<TypeParam>(p.rng.uniform(-1, 1)); });
    const auto x = p.rng.template matrix<TypeParam>(p.queries, p.rng.integer(0, 40));
    const Matrix<TypeParam> alone = carried_back(p, x, 1);
    for (const Index size : {Index{3}, kGroupBlocks, Index{40}}) {
      EXPECT_TRUE(same_bits(carried_back(p, x, size), alone)) << "seed " << seed;
    }
  }
}

TYPED_TEST(MixingAdjoint, ANaNReachesTheColumnsThatItsRowReadsAndNoOther) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mix<TypeParam> p(seed);
    const auto clean = test::integers<TypeParam>(p.rng, p.queries, 9);
    const Matrix<TypeParam> expected = carried_back(p, clean, kGroupBlocks);
    for (Index i = 0; i < p.rows; ++i) {  // coefficients that count for nothing
      for (Index b = p.m.first(i); b < p.m.last(i); ++b) {
        if (!p.reads(i, b)) p.m.at(i, b) = kNaN<TypeParam>;
      }
    }
    for (Index i = 0; i < p.queries; i += 1 + i / 4) {
      Matrix<TypeParam> x = clean;
      x.row(i).setConstant(kNaN<TypeParam>);
      const Matrix<TypeParam> got = carried_back(p, x, kGroupBlocks);
      for (Index b = 0; b < p.keys; ++b) {
        if (p.reads(i, b)) {
          EXPECT_TRUE(got.row(b).array().isNaN().all()) << i << " reads " << b;
        } else {
          EXPECT_EQ(got.row(b), expected.row(b)) << i << " and " << b;
        }
      }
    }
  }
}

/// Gradients of m from `terms` products of rows, for all groups, added to `before`.
template <class A>
Matrix<A> gradient_of(const Mix<A>& p, const std::vector<Matrix<A>>& left,
                      const std::vector<Matrix<A>>& right, Index size, const Matrix<A>& before) {
  Matrix<A> storage = before;
  Memory memory(60000);
  MixingGradient<A> gradient("f", memory.arena, size, p.keys);
  const A* const beside = memory.arena.template take<A>("f", 16);
  for (Index begin = 0; begin < p.queries; begin += size) {
    gradient.start(p.m, begin, std::min(begin + size, p.queries), p.reach, p.keys);
    for (std::size_t n = 0; n < left.size(); ++n) {
      const Index length = left[n].cols();
      gradient.add(RightOperand<A>{left[n].data() + begin * length, length},
                   RightOperand<A>{right[n].data(), length}, length);
    }
    gradient.store(storage.data());
  }
  EXPECT_TRUE(std::all_of(beside, beside + 16, [](A a) { return std::isnan(a); }));
  return storage;
}

TYPED_TEST(MixingAdjoint, GradientsOfCoefficientsAreAddedInsideTheBandAndTheReachAlone) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mix<TypeParam> p(seed);
    std::vector<Matrix<TypeParam>> left, right;
    for (Index n = p.rng.integer(0, 3); n > 0; --n) {
      const Index length = p.rng.integer(0, 50);
      left.push_back(test::integers<TypeParam>(p.rng, p.queries, length));
      right.push_back(test::integers<TypeParam>(p.rng, p.keys, length));
    }
    Matrix<TypeParam> before = test::integers<TypeParam>(p.rng, p.rows, p.m.width(), 99);
    Matrix<TypeParam> expected = before;
    for (Index i = 0; i < p.rows; ++i) {
      for (Index b = 0; b < p.cols; ++b) {
        if (!p.reads(i, b)) continue;
        for (std::size_t n = 0; n < left.size(); ++n) {
          expected(i, b - p.m.first(i)) += left[n].row(i).dot(right[n].row(b));
        }
      }
    }
    for (const Index size : {Index{1}, Index{5}, kGroupBlocks, Index{40}}) {
      EXPECT_EQ(gradient_of(p, left, right, size, before), expected) << "groups of " << size;
    }
  }
}

TYPED_TEST(MixingAdjoint, ANaNReachesNoCoefficientOfAnotherPair) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mix<TypeParam> p(seed);
    if (p.queries == 0 || p.keys == 0) continue;
    std::vector<Matrix<TypeParam>> left{test::integers<TypeParam>(p.rng, p.queries, 20)},
        right{test::integers<TypeParam>(p.rng, p.keys, 20)};
    const Matrix<TypeParam> zero = Matrix<TypeParam>::Zero(p.rows, p.m.width());
    const Matrix<TypeParam> clean = gradient_of(p, left, right, kGroupBlocks, zero);
    const Index query = p.rng.integer(0, p.queries - 1), key = p.rng.integer(0, p.keys - 1);
    left[0](query, 7) = right[0](key, 11) = kNaN<TypeParam>;
    const Matrix<TypeParam> got = gradient_of(p, left, right, kGroupBlocks, zero);
    for (Index i = 0; i < p.rows; ++i) {
      for (Index b = p.m.first(i); b < p.m.last(i); ++b) {
        const Index j = b - p.m.first(i);
        if (p.reads(i, b) && (i == query || b == key)) {
          EXPECT_TRUE(std::isnan(got(i, j))) << i << ", " << b;
        } else {
          EXPECT_EQ(got(i, j), clean(i, j)) << i << ", " << b;
        }
      }
    }
  }
}

/// Summaries with one row of x for each block.   // x [M, D*E]
template <class A>
detail::Summaries<A> summaries_of(Memory& memory, const Matrix<A>& x, Index d, Index e) {
  const detail::Summaries<A> s("f", memory.arena, x.rows(), d, e);
  for (Index b = 0; b < x.rows(); ++b) {
    const detail::SummaryBlock<A> block = s.block(b);
    for (Index j = 0; j < d * e; ++j) block.row(j / e)[j % e] = x(b, j);
  }
  return s;
}

TYPED_TEST(MixingAdjoint, SummariesAreMultipliedOverAllTheirElements) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mix<TypeParam> p(seed);
    const Index d = p.rng.integer(1, 20), e = p.rng.integer(1, 20);  // up to five slabs
    const auto gradients = test::integers<TypeParam>(p.rng, p.queries, d * e);
    const auto s = test::integers<TypeParam>(p.rng, p.keys, d * e);
    const Matrix<TypeParam> zero = Matrix<TypeParam>::Zero(p.rows, p.m.width());
    Memory memory(1000000);
    const auto left = summaries_of(memory, gradients, d, e), right = summaries_of(memory, s, d, e);
    Matrix<TypeParam> storage = zero;
    MixingGradient<TypeParam> gradient("f", memory.arena, kGroupBlocks, p.keys);
    for (Index begin = 0; begin < p.queries; begin += kGroupBlocks) {
      gradient.start(p.m, begin, std::min(begin + kGroupBlocks, p.queries), p.reach, p.keys);
      gradient.add(left, right);
      gradient.store(storage.data());
    }
    EXPECT_EQ(storage, gradient_of(p, {gradients}, {s}, kGroupBlocks, zero));
  }
}

}  // namespace
}  // namespace mhla
