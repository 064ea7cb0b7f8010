#include "mhla/gradient/linear.hpp"

#include "contract/gradient.hpp"
#include "support/placed.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(LinearFloat, Gradient, InFloat<Linear>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearFloat, FullGradient, InFloat<Linear>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalFloat, Gradient, InFloat<LinearCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalFloat, FullGradient, InFloat<LinearCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalFloat, CausalGradient, InFloat<LinearCausal>);

TEST(LinearBidirectional, CrossQueryIsKeySumForwardsAndBackwards) {
  constexpr Index kTokens = 70, kWidth = 5;
  Random rng(1);
  const auto draw = [&rng] { return rng.matrix<double>(kTokens, kWidth, 0.1, 1); };
  const Matrix<double> q = draw(), k = draw(), v = draw(), dout = draw();
  const auto run = [&](auto normalizer, Matrix<double>& out, Matrix<double>& dq) {
    const Operator op{EluPlusOne{}, EluPlusOne{}, normalizer};
    out = linear_bidirectional(inputs(q, k, v), op);
    dq = Matrix<double>::Zero(kTokens, kWidth);
    linear_bidirectional_gradient(inputs(q, k, v), op, dout, {.q = dq});
  };
  Matrix<double> out, cross_out, dq, cross_dq;
  run(KeySum{0.1}, out, dq);
  run(CrossQuery{0.1}, cross_out, cross_dq);
  // All terms are positive and of 70 tokens and 5 features; gradients cancel by less than 100.
  EXPECT_LE((cross_out - out).cwiseAbs().maxCoeff(), 100 * kRoundoff<double> * out.maxCoeff());
  EXPECT_LE((cross_dq - dq).cwiseAbs().maxCoeff(),
            1e4 * kRoundoff<double> * dq.cwiseAbs().maxCoeff());
  EXPECT_GT(dq.cwiseAbs().maxCoeff(), 0);
}

}  // namespace mhla::test
