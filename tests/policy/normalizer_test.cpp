#include "mhla/policy/normalizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "contract/normalizer.hpp"

namespace mhla {
namespace {

/// A user's normaliser: max(r, 1).
struct AtLeastOne {
  static constexpr WeightSums sums() { return WeightSums::kToken; }
  template <class A>
  void denominators(const A* r, Index count, A* den) const {
    for (Index t = 0; t < count; ++t) den[t] = std::max(r[t], A(1));
  }
  template <class A>
  void slopes(const A* r, Index count, A* slope) const {
    for (Index t = 0; t < count; ++t) slope[t] = r[t] > 1 ? A(1) : A(0);
  }
};

static_assert(CausalNormalizer<AtLeastOne> && !CausalNormalizer<CrossQuery>);
static_assert(DifferentiableNormalizer<AtLeastOne>);

template <class A>
class NormalizerOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(NormalizerOf, Accumulators);

TYPED_TEST(NormalizerOf, DenominatorsDependOnTheirOwnSumAlone) {
  test::expect_normalizer_laws<TypeParam>(NoNormalizer{});
  test::expect_normalizer_laws<TypeParam>(KeySum{});
  test::expect_normalizer_laws<TypeParam>(KeySum{.eps = 0.25});
  test::expect_normalizer_laws<TypeParam>(CrossQuery{});
  test::expect_normalizer_laws<TypeParam>(AtLeastOne{});
  test::expect_normalizer_laws<TypeParam>(test::SquarePlusOne{});
}

TYPED_TEST(NormalizerOf, SlopesAreTheDerivativesOfTheDenominators) {
  test::expect_slope_laws<TypeParam>(NoNormalizer{});
  test::expect_slope_laws<TypeParam>(KeySum{.eps = 0.25});
  test::expect_slope_laws<TypeParam>(CrossQuery{});
  test::expect_slope_laws<TypeParam>(AtLeastOne{}, -3, 0.9);
  test::expect_slope_laws<TypeParam>(AtLeastOne{}, 1.1, 3);
}

/// The denominators of some sums.
template <class A>
std::vector<A> denominators(const auto& z, const std::vector<A>& r) {
  std::vector<A> den(r.size());
  z.denominators(r.data(), std::ssize(r), den.data());
  return den;
}

TYPED_TEST(NormalizerOf, EpsIsAddedToTheSumAndRoundedWithIt) {
  using A = TypeParam;
  const std::vector<A> r{0, A(0.5), -2, std::numeric_limits<A>::infinity()};
  std::vector<A> sums = r;
  for (A& sum : sums) sum += A(1e-6);
  EXPECT_EQ(denominators(NoNormalizer{}, r), std::vector<A>(4, A(1)));
  EXPECT_EQ(denominators(KeySum{}, r), r);
  EXPECT_EQ(denominators(KeySum{.eps = 1e-6}, r), sums);
  EXPECT_EQ(denominators(CrossQuery{}, r), sums);
  EXPECT_EQ(denominators(CrossQuery{.eps = 0}, r), r);
  EXPECT_EQ(denominators(AtLeastOne{}, r), (std::vector<A>{1, 1, 1, r[3]}));
}

TEST(Normalizer, NamesTheSumsThatItReads) {
  EXPECT_EQ(NoNormalizer::sums(), WeightSums::kNone);
  EXPECT_EQ(KeySum::sums(), WeightSums::kToken);
  EXPECT_EQ(CrossQuery::sums(), WeightSums::kCrossQuery);
}

}  // namespace
}  // namespace mhla
