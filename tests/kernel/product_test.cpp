#include "mhla/kernel/product.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "contract/product.hpp"

namespace mhla {
namespace {

template <class A>
class ProductOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(ProductOf, Accumulators);

constexpr auto kMultiply = [](const auto& product) { detail::multiply(product); };

TYPED_TEST(ProductOf, EveryElementIsOneChainOfMultiplyAddsAndNothingElseIsReadOrWritten) {
  test::expect_chains<TypeParam>(kMultiply);
}

TYPED_TEST(ProductOf, EverySmallNumberOfRowsIsRightBesideEveryLengthOfAPacket) {
  test::expect_chains_of_small_shapes<TypeParam>(kMultiply);
}

TYPED_TEST(ProductOf, CuttingItIntoCallsChangesNoBit) {
  test::expect_cuts_change_nothing<TypeParam>(kMultiply);
}

TYPED_TEST(ProductOf, ANaNStaysInItsRowOfAAndItsColumnOfB) {
  test::expect_nan_stays<TypeParam>(kMultiply);
}

TYPED_TEST(ProductOf, WhatIsPrefetchedMeanwhileChangesNoBit) {
  test::expect_prefetch_changes_nothing<TypeParam>(kMultiply);
}

TYPED_TEST(ProductOf, StretchesOfItsColumnsAreTheWhole) {
  const auto multiply = [](const auto& product) { detail::multiply_stretches(product); };
  test::expect_chains<TypeParam>(multiply);
  test::expect_prefetch_changes_nothing<TypeParam>(multiply);
}

TYPED_TEST(ProductOf, NoDepthWritesZeroOrLeavesTheTarget) {
  using A = TypeParam;
  std::vector<A> c(12, A(3));
  const detail::Product<A> nothing{
      .out = {c.data(), 4}, .a = {nullptr, 3, 0, 0}, .b = {nullptr, 4}, .cols = 4};
  detail::Product<A> added = nothing;
  added.start = detail::Start::kTarget;
  detail::multiply(added);
  EXPECT_EQ(c, std::vector<A>(12, A(3)));
  detail::multiply(nothing);
  EXPECT_EQ(c, std::vector<A>(12, A(0)));
}

TYPED_TEST(ProductOf, StridesOfZeroAndLessAreFollowed) {
  using A = TypeParam;
  test::Random rng(3);
  for (Index size = 1; size <= 20; ++size) {
    const std::vector<A> a = test::numbers<A>(rng, size), b = test::numbers<A>(rng, 1);
    std::vector<A> c = test::numbers<A>(rng, size);
    A forwards = 0, backwards = 0;
    for (std::size_t k = 0; k < a.size(); ++k) {
      forwards = test::step(a[k], b[0], forwards);
      backwards = test::step(a[a.size() - 1 - k], b[0], backwards);
    }
    // One row for all rows of A, the rows of C backwards; then one row of A read backwards.
    detail::multiply<A>({.out = {c.data() + size - 1, -1},
                         .a = {a.data(), size, size, 0},
                         .b = {b.data(), 0},
                         .cols = 1});
    EXPECT_EQ(c, std::vector<A>(a.size(), forwards));
    detail::multiply<A>({.out = {c.data(), 1},
                         .a = {a.data() + size - 1, 1, size, 0, -1},
                         .b = {b.data(), 0},
                         .cols = 1});
    EXPECT_EQ(c[0], backwards);
  }
}

}  // namespace
}  // namespace mhla
