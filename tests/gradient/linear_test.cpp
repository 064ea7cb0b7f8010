#include "mhla/gradient/linear.hpp"

#include <gtest/gtest.h>

#include "support/gradient_causality.hpp"
#include "support/gradient_differences.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_laws.hpp"

namespace mhla::test {
namespace {

/// There is no mixing matrix, so there is no gradient of one.
template <class Form>
void expect_mixing_is_rejected() {
  auto p = complete_problem(Form::kCausal);
  Form::fit(p);
  const Matrix<float> dout = random_dout(p);
  GradientBuffers<float> g(p);
  const auto before = g;
  with_operator_of<Form>(p, [&](const auto& op) {
    const auto call = [&] {
      if constexpr (Form::kCausal) {
        linear_causal_gradient(p.inputs(), op, dout, g.views(), g.parameters());
      } else {
        linear_bidirectional_gradient(p.inputs(), op, dout, g.views(), g.parameters());
      }
    };
    EXPECT_EQ(message_of<option_error>(call),
              std::string("mhla::") + Form::kName +
                  ": parameters.mixing is set, expected null: there is no mixing matrix");
  });
  EXPECT_EQ(different_bits(before, g), "");
}

TEST(LinearBidirectionalGradient, IsTheTransposeOfTheDirectionalDerivative) {
  expect_oracle<LinearBidirectional>(1'000'000, 3'000);
}
TEST(LinearBidirectionalGradient, EqualsCentralDifferences) {
  expect_central_differences_of_all<LinearBidirectional>();
}
TEST(LinearBidirectionalGradient, EqualsTheDenseGradient) {
  expect_elements<LinearBidirectional, double>(1'100'000, 1'000);
  expect_elements<LinearBidirectional, float>(1'200'000, 2'000);
  expect_elements<LinearBidirectional, Eigen::half>(1'300'000, 500);
  expect_elements<LinearBidirectional, Eigen::bfloat16>(1'400'000, 500);
  expect_elements_of_large_problems<LinearBidirectional, double>(100, 20);
  expect_elements_of_large_problems<LinearBidirectional, float>(150, 40);
}
TEST(LinearBidirectionalGradient, IsAdded) {
  expect_gradients_are_added<LinearBidirectional, float>(0, 300);
}
TEST(LinearBidirectionalGradient, OutputsDoNotDependOnEachOther) {
  expect_outputs_do_not_depend_on_each_other<LinearBidirectional>(0, 150);
}
TEST(LinearBidirectionalGradient, BitsDoNotDependOnMemory) {
  expect_same_bits_however_computed<LinearBidirectional, float>(0, 200);
  expect_same_bits_for_any_strides<LinearBidirectional>(0, 200);
}
TEST(LinearBidirectionalGradient, MaskedTokensReachNothing) {
  expect_masked_tokens_reach_nothing<LinearBidirectional, float>(0, 500);
}
TEST(LinearBidirectionalGradient, UnusedTensorsChangeNothing) {
  expect_unused_tensors_change_nothing<LinearBidirectional>(200);
}
TEST(LinearBidirectionalGradient, NothingGivesNothing) {
  expect_nothing_where_nothing_is<LinearBidirectional>();
}
TEST(LinearBidirectionalGradient, RejectsWhatDoesNotFitAndTouchesNothing) {
  expect_wrong_calls_are_rejected<LinearBidirectional>();
  expect_mixing_is_rejected<LinearBidirectional>();
}

TEST(LinearCausalGradient, IsTheTransposeOfTheDirectionalDerivative) {
  expect_oracle<LinearCausal>(2'000'000, 3'000);
}
TEST(LinearCausalGradient, EqualsCentralDifferences) {
  expect_central_differences_of_all<LinearCausal>();
}
TEST(LinearCausalGradient, EqualsTheDenseGradient) {
  expect_elements<LinearCausal, double>(2'100'000, 1'000);
  expect_elements<LinearCausal, float>(2'200'000, 2'000);
  expect_elements<LinearCausal, Eigen::half>(2'300'000, 500);
  expect_elements<LinearCausal, Eigen::bfloat16>(2'400'000, 500);
  expect_elements_of_large_problems<LinearCausal, double>(200, 20);
  expect_elements_of_large_problems<LinearCausal, float>(250, 40);
}
TEST(LinearCausalGradient, IsAdded) { expect_gradients_are_added<LinearCausal, float>(0, 300); }
TEST(LinearCausalGradient, OutputsDoNotDependOnEachOther) {
  expect_outputs_do_not_depend_on_each_other<LinearCausal>(0, 150);
}
TEST(LinearCausalGradient, BitsDoNotDependOnMemory) {
  expect_same_bits_however_computed<LinearCausal, float>(0, 200);
  expect_same_bits_for_any_strides<LinearCausal>(0, 200);
}
TEST(LinearCausalGradient, MaskedTokensReachNothing) {
  expect_masked_tokens_reach_nothing<LinearCausal, float>(0, 500);
}
TEST(LinearCausalGradient, QueriesDoNotDependOnLaterTokens) {
  expect_queries_do_not_depend_on_later_tokens<LinearCausal>();
}
TEST(LinearCausalGradient, KeysDoNotDependOnEarlierQueries) {
  expect_keys_do_not_depend_on_earlier_queries<LinearCausal>();
}
TEST(LinearCausalGradient, ALossOnEarlierOutputsHasNoGradientLater) {
  expect_no_gradient_behind_the_loss<LinearCausal>();
}
TEST(LinearCausalGradient, UnusedTensorsChangeNothing) {
  expect_unused_tensors_change_nothing<LinearCausal>(200);
}
TEST(LinearCausalGradient, NothingGivesNothing) { expect_nothing_where_nothing_is<LinearCausal>(); }
TEST(LinearCausalGradient, RejectsWhatDoesNotFitAndTouchesNothing) {
  expect_wrong_calls_are_rejected<LinearCausal>();
  expect_mixing_is_rejected<LinearCausal>();
}

}  // namespace
}  // namespace mhla::test
