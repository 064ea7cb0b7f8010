#include "mhla/stage/mixing.hpp"

#include <gtest/gtest.h>

#include "stage/unit_case.hpp"

namespace mhla::test {
namespace {

using detail::kGroupBlocks;
using detail::Reach;

template <class A>
class Mixing : public testing::Test {};
TYPED_TEST_SUITE(Mixing, Accumulators);

TYPED_TEST(Mixing, IsTheWeightedSumOfTheSummariesThatARowReads) {
  for_cases(150, expect_mixtures<VectorCase<TypeParam>>);
}

/// A random matrix of which the leading blocks are mixed.
template <class A>
struct Mix {
  Index rows, cols, queries, keys;
  Reach reach;
  MixingMatrix<A> m;
  Exact used;  // m, and 0 where nobody reads   // [queries, keys]

  explicit Mix(Random& rng)
      : rows(rng.integer(1, 40)),
        cols(rng.integer(1, 40)),
        queries(rng.chance(0.5) ? rows : rng.integer(0, rows)),
        keys(rng.chance(0.5) ? cols : rng.integer(0, cols)),
        reach(rng.chance(0.5) ? Reach::kAll : Reach::kEarlier),
        m(MixingMatrix<A>::banded(rng.matrix<A>(rows, cols), bandwidth(rng), bandwidth(rng))),
        used(Exact::zero(0, 0)) {
    if (reach == Reach::kEarlier) queries = keys = std::min(queries, keys);
    Matrix<A> read = Matrix<A>::Zero(queries, keys);
    for (Index i = 0; i < rows; ++i) {
      for (Index b = m.band().first(i); b < m.band().last(i); ++b) {
        if (reads(i, b)) {
          read(i, b) = m(i, b);
        } else {
          m.at(i, b) = A(NAN);
        }
      }
    }
    used = read;
  }
  static Index bandwidth(Random& rng) { return rng.chance(0.5) ? rng.integer(0, 6) : 40; }
  bool reads(Index i, Index b) const {
    return m.band().holds(i, b) && i < queries && b < keys && (reach == Reach::kAll || b < i);
  }
};

TYPED_TEST(Mixing, ColumnsMixWhatTheirReadersHave) {
  using A = TypeParam;
  for_cases(200, [](Random& rng) {
    const Mix<A> p(rng);
    const Index cols = rng.integer(0, 40), size = rng.integer(1, 40);
    const Matrix<A> x = rng.matrix<A>(p.queries, cols);
    const Guarded<A> out(p.keys, cols);
    for (Index begin = 0; begin < p.keys; begin += size) {
      const Index end = std::min(begin + size, p.keys);
      GuardedArena memory(1 << 16);
      const detail::Coefficients<A> room("f", memory.next(), end - begin, p.queries);
      const auto group =
          detail::MixingGroup<A>::of_columns(p.m, begin, end, p.reach, p.queries, room);
      group.mix(out.rows().below(begin), {x.data(), cols}, cols);
      memory.expect_intact();
    }
    out.expect(p.used.transpose() * Exact(x), {p.queries});
  });
}

TYPED_TEST(Mixing, TheGradientOfEveryCoefficientThatIsReadGrowsByItsProducts) {
  using A = TypeParam;
  for_cases(200, [](Random& rng) {
    const Mix<A> p(rng);
    const bool in_parts = rng.integer(0, 9) == 0;  // longer than kInnerDepth
    const Index d = rng.integer(1, 20), e = in_parts ? rng.integer(100, 300) : rng.integer(1, 20),
                size = rng.integer(1, 40);
    const Matrix<A> ds = rng.matrix<A>(p.queries, d * e), s = rng.matrix<A>(p.keys, d * e),
                    dz = rng.matrix<A>(p.queries, d), z = rng.matrix<A>(p.keys, d);
    MixingMatrix<A> sums(p.m.band());
    const Matrix<A> start = rng.matrix<A>(1, p.m.band().size());
    std::copy_n(start.data(), start.size(), sums.storage().data());

    GuardedArena memory(1 << 24);
    const detail::Summaries<A> left("f", memory.next(), p.queries, d, e);
    const detail::Summaries<A> right("f", memory.next(), p.keys, d, e);
    VectorCase<A>::store(ds, left);
    VectorCase<A>::store(s, right);
    detail::MixingGradient<A> gradient("f", memory.next(), size, p.keys);
    for (Index begin = 0; begin < p.queries; begin += size) {
      gradient.start(p.m.band(), begin, std::min(begin + size, p.queries), p.reach, p.keys);
      gradient.add(left, right);
      gradient.add({dz.data() + begin * d, d}, {z.data(), d}, d);
      gradient.store(sums);
    }
    memory.expect_intact();
    const MixingView<const A> before(start.data(), p.m.band());
    const Exact expected = Exact(ds) * Exact(s).transpose() + Exact(dz) * Exact(z).transpose();
    for (Index i = 0; i < p.rows; ++i) {
      for (Index b = p.m.band().first(i); b < p.m.band().last(i); ++b) {
        if (p.reads(i, b)) {
          const Exact sum(expected.row(i).transpose().row(b) +
                          Exact(Matrix<A>::Constant(1, 1, before(i, b)).eval()));
          ASSERT_TRUE(is_within<A>(sums(i, b), sum, 0, 0, {d * e + d + 2}));
        } else {
          ASSERT_EQ(sums(i, b), before(i, b)) << "written outside of what is read";
        }
      }
    }
  });
}

TEST(GroupBlocks, AreSharedByTheWorkersInFourGroupsEachWhereMixturesFitL2) {
  const auto group = [](Index size, Index blocks, Index workers) {
    return detail::group_blocks<float>(blocks, size, size, workers);
  };
  EXPECT_EQ(group(64, 16, 1), kGroupBlocks);
  EXPECT_EQ(group(64, 512, 1), detail::round_up(128, detail::kTile.rows));
  EXPECT_EQ(group(64, 512, 2), detail::round_up(64, detail::kTile.rows));
  EXPECT_EQ(group(64, 512, 64), kGroupBlocks);
  EXPECT_EQ(group(128, 0, 3), kGroupBlocks);
  EXPECT_EQ(group(128, 1, 1), kGroupBlocks);
  EXPECT_EQ(group(128, 100, 1), detail::round_up(100, detail::kTile.rows));
  EXPECT_EQ(group(128, 100, 2), detail::round_up(50, detail::kTile.rows));
  EXPECT_EQ(group(128, 100, 64), kGroupBlocks);
  EXPECT_EQ(group(128, 1000, 1), detail::kLargestGroup);
}

}  // namespace
}  // namespace mhla::test
