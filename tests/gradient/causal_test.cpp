#include "mhla/gradient/causal.hpp"

#include <gtest/gtest.h>

#include "support/gradient_causality.hpp"
#include "support/gradient_differences.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_laws.hpp"

namespace mhla::test {
namespace {

TEST(CausalGradient, IsTheTransposeOfTheDirectionalDerivative) {
  expect_oracle<CausalForm>(1'000'000, 10'000);
}
TEST(CausalGradient, EqualsCentralDifferences) { expect_central_differences_of_all<CausalForm>(); }
TEST(CausalGradient, DoubleEqualsTheDenseGradient) {
  expect_elements<CausalForm, double>(2'000'000, 2'000);
}
TEST(CausalGradient, FloatEqualsTheDenseGradient) {
  expect_elements<CausalForm, float>(3'000'000, 4'000);
}
TEST(CausalGradient, HalfEqualsTheDenseGradient) {
  expect_elements<CausalForm, Eigen::half>(4'000'000, 1'000);
}
TEST(CausalGradient, Bfloat16EqualsTheDenseGradient) {
  expect_elements<CausalForm, Eigen::bfloat16>(5'000'000, 1'000);
}
TEST(CausalGradient, LargeProblemsEqualTheDenseGradient) {
  expect_elements_of_large_problems<CausalForm, double>(0, 30);
  expect_elements_of_large_problems<CausalForm, float>(100, 60);
  expect_elements_of_large_problems<CausalForm, Eigen::bfloat16>(200, 30);
}

TEST(CausalGradient, IsAdded) {
  expect_gradients_are_added<CausalForm, double>(0, 300);
  expect_gradients_are_added<CausalForm, float>(300, 300);
  expect_gradients_are_added<CausalForm, Eigen::bfloat16>(600, 300);
}
TEST(CausalGradient, OutputsDoNotDependOnEachOther) {
  expect_outputs_do_not_depend_on_each_other<CausalForm>(0, 150);
}
TEST(CausalGradient, BitsDoNotDependOnHowTheyAreComputed) {
  expect_same_bits_however_computed<CausalForm, float>(0, 300);
  expect_same_bits_however_computed<CausalForm, double>(1000, 100);
  expect_same_bits_however_computed<CausalForm, Eigen::bfloat16>(2000, 100);
}
TEST(CausalGradient, BitsDoNotDependOnStrides) {
  expect_same_bits_for_any_strides<CausalForm>(0, 300);
}
TEST(CausalGradient, MaskedTokensReachNothing) {
  expect_masked_tokens_reach_nothing<CausalForm, float>(0, 1000);
  expect_masked_tokens_reach_nothing<CausalForm, Eigen::half>(5000, 300);
}
TEST(CausalGradient, QueriesDoNotDependOnLaterTokens) {
  expect_queries_do_not_depend_on_later_tokens<CausalForm>();
}
TEST(CausalGradient, KeysDoNotDependOnEarlierQueries) {
  expect_keys_do_not_depend_on_earlier_queries<CausalForm>();
}
TEST(CausalGradient, ALossOnEarlierOutputsHasNoGradientLater) {
  expect_no_gradient_behind_the_loss<CausalForm>();
}

TEST(CausalGradient, TouchesOnlyTheLeadingLowerTriangleOfMixing) {
  Index untouched = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const auto p = any_problem<CausalForm, float>(seed);
    auto g = GradientBuffers<float>(p), expected = gradients_of<CausalForm>(p, random_dout(p));
    const auto poison = [&](MixingMatrix<float>& m) {
      for (Index i = 0; i < m.rows(); ++i) {
        for (Index b = m.first(i); b < m.last(i); ++b) {
          if (b <= i && i < p.query_blocks.blocks()) continue;
          ++untouched;
          m.at(i, b) = NAN;
        }
      }
    };
    poison(g.mixing);
    poison(expected.mixing);
    add_gradients<CausalForm>(p, random_dout(p), g, Sequential{});
    EXPECT_EQ(different_bits(expected, g), "") << p.text();
  }
  EXPECT_GT(untouched, 400);
}

TEST(CausalGradient, UnusedTensorsChangeNothing) {
  expect_unused_tensors_change_nothing<CausalForm>(200);
}
TEST(CausalGradient, NothingGivesNothing) { expect_nothing_where_nothing_is<CausalForm>(); }
TEST(CausalGradient, RejectsWhatDoesNotFitAndTouchesNothing) {
  expect_wrong_calls_are_rejected<CausalForm>();
}

}  // namespace
}  // namespace mhla::test
