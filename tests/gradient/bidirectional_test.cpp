#include "mhla/gradient/bidirectional.hpp"

#include "contract/gradient.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_random.hpp"

namespace mhla::test {

TEST_GRADIENT(Bidirectional, BidirectionalForm, float);

TEST(BidirectionalGradient, NanInABlockWithoutGradientsReachesNothing) {
  auto p = complete_problem<double>(BidirectionalForm());
  Random rng(2);
  p.set_mixing(Pattern(3, 3, 0, 0), rng, 0.1);  // every block reads itself
  p.dout.middleRows(2, 2).setZero();
  const auto clean = gradients_of(BidirectionalForm(), p);
  for (Matrix<double>& m : p.tensors) m.middleRows(2, 2).setConstant(NAN);
  expect_same(clean, gradients_of(BidirectionalForm(), p), p, "NaN in block 1");
}

}  // namespace mhla::test
