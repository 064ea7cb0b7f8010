#include "mhla/stage/mixing.hpp"

#include <gtest/gtest.h>

#include "support/mix_case.hpp"
#include "support/unit_case.hpp"

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
      const detail::Coefficients<A> scratch("f", memory.next(), end - begin, p.queries);
      const auto group =
          detail::MixingGroup<A>::of_columns(p.m, begin, end, p.reach, p.queries, scratch);
      group.mix(out.rows().below(begin), {x.data(), cols}, cols);
      memory.expect_intact();
    }
    out.expect(p.used.transpose() * Exact(x), {p.queries});
  });
}

TYPED_TEST(Mixing, ListsGiveTheBitsOfTheDenseMatrixWithZeros) {
  using A = TypeParam;
  for_cases(100, [](Random& rng) {
    const Index blocks = rng.integer(1, 40), cols = rng.integer(1, 300);
    Matrix<A> m = rng.matrix<A>(blocks, blocks);
    for (A& c : m.reshaped()) c = rng.chance(0.3) ? c : 0;
    const Matrix<A> x = rng.matrix<A>(blocks, cols);
    const auto mixed = [&](const MixingMatrix<A>& mixing) {
      GuardedArena memory(1 << 16);
      const detail::Coefficients<A> scratch("f", memory.next(), blocks, blocks);
      Matrix<A> out(blocks, cols);
      detail::MixingGroup<A>(mixing, 0, blocks, Reach::kAll, blocks, scratch)
          .mix({out.data(), cols}, {x.data(), cols}, cols);
      return out;
    };
    const MixingMatrix<A> dense(m);
    EXPECT_TRUE(same_bits(mixed(dense), mixed(MixingMatrix<A>::sparse(dense))));
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
