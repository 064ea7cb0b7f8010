#include "mhla/gradient/bidirectional.hpp"

#include "contract/gradient.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalFloat, Gradient, InFloat<BidirectionalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalFloat, FullGradient, InFloat<BidirectionalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalFloat, MixingGradient, InFloat<BidirectionalForm>);

TEST(BidirectionalGradient, NanInABlockWithoutGradientsReachesNothing) {
  auto p = complete_problem<BidirectionalForm, double>();
  Random rng(2);
  p.set_mixing(Pattern(3, 3, 0, 0), rng, 0.1);  // every block reads itself
  p.dout.middleRows(2, 2).setZero();
  const auto clean = gradients_of<BidirectionalForm>(p);
  for (Matrix<double>& m : p.tensors) m.middleRows(2, 2).setConstant(NAN);
  expect_same(clean, gradients_of<BidirectionalForm>(p), p, "NaN in block 1");
}

}  // namespace mhla::test
