#include "mhla/stage/summary.hpp"

#include <gtest/gtest.h>

#include "stage/unit_case.hpp"

namespace mhla::test {
namespace {

using detail::kStripTokens;

template <class A>
class Summary : public testing::Test {};
TYPED_TEST_SUITE(Summary, Accumulators);

TYPED_TEST(Summary, IsTheSumOverTheKeptTokensOfItsBlock) {
  for_cases(60, expect_summaries<VectorCase<TypeParam>>);
}

TYPED_TEST(Summary, KeysAloneHaveTheSameSum) {
  using A = TypeParam;
  for_cases(20, [](Random& rng) {
    const Index n = rng.integer(0, 200), d = rng.integer(1, 40);
    const Contiguous blocks(n, 90);
    const RandomMask kept(rng, n, 0.7);
    const Matrix<A> k = rng.matrix<A>(n, d);
    for (Index b = 0; b < blocks.blocks(); ++b) {
      GuardedArena memory(1 << 20);
      const detail::KeyScratch<A> scratch("f", memory.next(), d, d, 0);
      const Guarded<A> sum(1, d);
      detail::sum_keys(MatrixView<const A>(k), blocks, b, kept.mask, Identity{}, scratch,
                       sum.data());
      memory.expect_intact();
      const auto keys = rows_of<A>(k, kept_tokens(blocks, b, kept.mask));
      sum.expect(Exact(Matrix<A>::Ones(1, keys.rows()).eval()) * Exact(keys), {n});
    }
  });
}

TYPED_TEST(Summary, AdjointGivesKeysAndValuesTheirGradients) {
  using A = TypeParam;
  for_cases(100, [](Random& rng) {
    const Index count = rng.integer(0, kStripTokens), d = rng.integer(0, 40),
                e = rng.integer(0, 40);
    const auto keys = rng.matrix<A>(count, d), values = rng.matrix<A>(count, e),
               dz = rng.matrix<A>(1, d);
    const Index room = detail::round_up(d, detail::kRowAlignment);
    const Matrix<A> gradient = rng.matrix<A>(room, e);  // rows behind D may be read
    const Matrix<A> used = gradient.topRows(d), wide = rng.matrix<A>(9, 300);
    const Index ahead[] = {8, 0, 3};

    const Guarded<A> memory(1, room * e);
    const detail::Rows<A> transposed = detail::transpose_to(gradient.data(), d, e, memory.data());
    ASSERT_EQ(transposed.stride, room);
    for (Index c = 0; c < e; ++c) {
      for (Index r = 0; r < d; ++r) ASSERT_EQ(transposed.row(c)[r], used(r, c));
    }
    detail::Prefetch next(ahead, 3, MatrixView<const A>(wide));
    detail::Prefetch* const prefetch = rng.chance(0.5) ? &next : nullptr;
    const bool sums = rng.chance(0.5);
    const Target<A> dkeys(rng, count, d), dvalues(rng, count, e);
    detail::summary_adjoint_keys<A>(dkeys.start, Guarded<A>(values), count, d, e, transposed,
                                    sums ? dz.data() : nullptr, dkeys.rows, prefetch);
    Exact expected = Exact(values) * Exact(used).transpose();
    if (sums) expected = expected + Exact(Matrix<A>::Ones(count, 1).eval()) * Exact(dz);
    dkeys.expect(expected, {e + 2}, "dk");
    detail::summary_adjoint_values<A>(dvalues.start, Guarded<A>(keys), count, d, e,
                                      detail::Rows<const A>(used.data(), e), dvalues.rows,
                                      prefetch);
    dvalues.expect(Exact(keys) * Exact(used), {d + 1}, "dv");
  });
}

TEST(Summaries, RejectSizesThatNoMemoryCouldHold) {
  detail::Arena counting;
  const Index large = Index{1} << 31;
  EXPECT_THROW(detail::Summaries<float>("f", counting, large, large, 8), shape_error);
}

}  // namespace
}  // namespace mhla::test
