#include "mhla/gradient/causal_decay.hpp"

#include "contract/gradient.hpp"

namespace mhla::test {

using DecayInFloat = InFloat<CausalDecayForm>;
using DecayInDouble = testing::Types<Case<CausalDecayForm, double>>;
INSTANTIATE_TYPED_TEST_SUITE_P(CausalDecayFloat, Gradient, DecayInFloat);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalDecayFloat, FullGradient, DecayInFloat);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalDecayFloat, CausalGradient, DecayInFloat);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalDecayDouble, Gradient, DecayInDouble);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalDecayDouble, DoubleGradient, DecayInDouble);

TEST(CausalDecayGradient, KeptSummariesGiveTheSameBits) {
  GradientLaws<CausalDecayForm, float>::kept_summaries_give_the_same_bits();
}

}  // namespace mhla::test
