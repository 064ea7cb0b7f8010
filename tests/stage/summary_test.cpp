#include "mhla/stage/summary.hpp"

#include <gtest/gtest.h>

#include "support/unit_case.hpp"

namespace mhla::test {
namespace {

template <class A>
class Summary : public testing::Test {};
TYPED_TEST_SUITE(Summary, Accumulators);

TYPED_TEST(Summary, IsTheSumOverTheKeptTokensOfItsBlock) {
  for_cases(60, expect_summaries<VectorCase<TypeParam>>);
}

TEST(Summaries, RejectSizesThatNoMemoryCouldHold) {
  detail::Arena counting;
  const Index large = Index{1} << 31;
  EXPECT_THROW(detail::Summaries<float>("f", counting, large, large, 8), shape_error);
}

}  // namespace
}  // namespace mhla::test
