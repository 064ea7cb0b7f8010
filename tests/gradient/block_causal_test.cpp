#include "mhla/gradient/block_causal.hpp"

#include "contract/gradient.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_random.hpp"

namespace mhla::test {

TEST_GRADIENT(BlockCausal, BlockCausalForm, float);

TEST(BlockCausalGradient, CoefficientsOfLaterStepsKeepTheirGradients) {
  Random rng(1);
  auto p = complete_problem<double>(BlockCausalForm());
  p.set_mixing(Pattern(3, 3), rng, 0.1);  // two steps: blocks 0 and 1, and block 2
  p.coefficients(0, 2) = p.coefficients(0, 5) = NAN;
  GradientBuffers<double> g(p, [] { return 7; });
  block_causal_gradient(p.inputs(), p.blocks.queries, p.mixing(), BlockCausalForm::kStep, p.op,
                        p.dout, g.views(), g.parameter_views());
  for (Index place = 0; place < 9; ++place) {
    const double number = g.parameters[0](0, place);
    EXPECT_EQ(number == 7, place == 2 || place == 5) << place << ": " << number;
    EXPECT_TRUE(std::isfinite(number)) << place;
  }
}

}  // namespace mhla::test
