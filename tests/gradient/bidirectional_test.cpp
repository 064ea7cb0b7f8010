#include "mhla/gradient/bidirectional.hpp"

#include <gtest/gtest.h>

#include "support/gradient_differences.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_laws.hpp"

namespace mhla::test {
namespace {

TEST(BidirectionalGradient, IsTheTransposeOfTheDirectionalDerivative) {
  expect_oracle<BidirectionalForm>(1'000'000, 10'000);
}
TEST(BidirectionalGradient, EqualsCentralDifferences) {
  expect_central_differences_of_all<BidirectionalForm>();
}
TEST(BidirectionalGradient, DoubleEqualsTheDenseGradient) {
  expect_elements<BidirectionalForm, double>(2'000'000, 2'000);
}
TEST(BidirectionalGradient, FloatEqualsTheDenseGradient) {
  expect_elements<BidirectionalForm, float>(3'000'000, 4'000);
}
TEST(BidirectionalGradient, HalfEqualsTheDenseGradient) {
  expect_elements<BidirectionalForm, Eigen::half>(4'000'000, 1'000);
}
TEST(BidirectionalGradient, Bfloat16EqualsTheDenseGradient) {
  expect_elements<BidirectionalForm, Eigen::bfloat16>(5'000'000, 1'000);
}
TEST(BidirectionalGradient, LargeProblemsEqualTheDenseGradient) {
  expect_elements_of_large_problems<BidirectionalForm, double>(0, 30);
  expect_elements_of_large_problems<BidirectionalForm, float>(100, 60);
  expect_elements_of_large_problems<BidirectionalForm, Eigen::bfloat16>(200, 30);
}

TEST(BidirectionalGradient, IsAdded) {
  expect_gradients_are_added<BidirectionalForm, double>(0, 300);
  expect_gradients_are_added<BidirectionalForm, float>(300, 300);
  expect_gradients_are_added<BidirectionalForm, Eigen::bfloat16>(600, 300);
}
TEST(BidirectionalGradient, OutputsDoNotDependOnEachOther) {
  expect_outputs_do_not_depend_on_each_other<BidirectionalForm>(0, 150);
}
TEST(BidirectionalGradient, BitsDoNotDependOnHowTheyAreComputed) {
  expect_same_bits_however_computed<BidirectionalForm, float>(0, 300);
  expect_same_bits_however_computed<BidirectionalForm, double>(1000, 100);
  expect_same_bits_however_computed<BidirectionalForm, Eigen::bfloat16>(2000, 100);
}
TEST(BidirectionalGradient, BitsDoNotDependOnStrides) {
  expect_same_bits_for_any_strides<BidirectionalForm>(0, 300);
}
TEST(BidirectionalGradient, MaskedTokensReachNothing) {
  expect_masked_tokens_reach_nothing<BidirectionalForm, float>(0, 1000);
  expect_masked_tokens_reach_nothing<BidirectionalForm, Eigen::half>(5000, 300);
}
TEST(BidirectionalGradient, UnusedTensorsChangeNothing) {
  expect_unused_tensors_change_nothing<BidirectionalForm>(200);
}
TEST(BidirectionalGradient, NothingGivesNothing) {
  expect_nothing_where_nothing_is<BidirectionalForm>();
}
TEST(BidirectionalGradient, RejectsWhatDoesNotFitAndTouchesNothing) {
  expect_wrong_calls_are_rejected<BidirectionalForm>();
}

}  // namespace
}  // namespace mhla::test
