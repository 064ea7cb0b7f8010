#include "mhla/stage/mixing_gradient.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "support/mix_case.hpp"
#include "support/unit_case.hpp"

namespace mhla::test {
namespace {

template <class A>
class MixingGradientOf : public testing::Test {};
TYPED_TEST_SUITE(MixingGradientOf, Accumulators);

TYPED_TEST(MixingGradientOf, TheGradientOfEveryCoefficientThatIsReadGrowsByItsProducts) {
  using A = TypeParam;
  for_cases(200, [](Random& rng) {
    const Mix<A> p(rng);
    const bool in_parts = rng.integer(0, 9) == 0;  // longer than kInnerDepth
    const Index d = rng.integer(1, 20), e = in_parts ? rng.integer(100, 300) : rng.integer(1, 20),
                size = rng.integer(1, 40);
    const Matrix<A> ds = rng.matrix<A>(p.queries, d * e), s = rng.matrix<A>(p.keys, d * e),
                    dz = rng.matrix<A>(p.queries, d), z = rng.matrix<A>(p.keys, d);
    MixingMatrix<A> sums(p.m.pattern());
    const Matrix<A> start = rng.matrix<A>(1, p.m.pattern().size());
    std::copy_n(start.data(), start.size(), sums.storage().data());

    GuardedArena memory(1 << 24);
    const detail::Summaries<A> left("f", memory.next(), p.queries, d, e);
    const detail::Summaries<A> right("f", memory.next(), p.keys, d, e);
    VectorCase<A>::store(ds, left);
    VectorCase<A>::store(s, right);
    detail::MixingGradient<A> gradient("f", memory.next(), size, p.keys);
    for (Index begin = 0; begin < p.queries; begin += size) {
      gradient.start(p.m.pattern(), begin, std::min(begin + size, p.queries), p.reach, p.keys);
      gradient.add(left, right);
      gradient.add({dz.data() + begin * d, d}, {z.data(), d}, d);
      gradient.store(sums);
    }
    memory.expect_intact();
    const MixingView<const A> before(start.data(), p.m.pattern());
    const Exact expected = Exact(ds) * Exact(s).transpose() + Exact(dz) * Exact(z).transpose();
    for (Index i = 0; i < p.rows; ++i) {
      for (Index b = 0; b < p.cols; ++b) {
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

// The cost of a band, or of a list, does not grow with M^2.
TYPED_TEST(MixingGradientOf, StartsWithZerosInTheColumnsThatArePatternedAlone) {
  using A = TypeParam;
  constexpr Index kBlocks = 200, kRows = 8;
  const std::vector<std::vector<Index>> lists(kBlocks, {3, 5});
  for (const Pattern& pattern : {Pattern(kBlocks, kBlocks, 1, 1), Pattern(kBlocks, lists)}) {
    std::vector<A> memory(2 * kRows * kBlocks, A(7));
    detail::Arena arena(reinterpret_cast<std::byte*>(memory.data()));
    detail::MixingGradient<A> gradient("f", arena, kRows, kBlocks);
    gradient.start(pattern, 100, 100 + kRows, detail::Reach::kAll, kBlocks);
    const auto end = memory.begin() + kRows * kBlocks - kBlocks;
    EXPECT_LE(std::count(memory.begin(), end, A(0)), kRows * (detail::kInnerRows + 2));
  }
}

}  // namespace
}  // namespace mhla::test
