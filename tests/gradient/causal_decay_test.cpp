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

/// Two workers that are asked for no negative number of pieces.
struct Counting {
  int workers() const { return 2; }
  void for_each(Index count, auto&& f) const {
    ASSERT_GE(count, 0);
    for (Index i = 0; i < count; ++i) f(i, i % 2);
  }
};

TEST(CausalDecayGradient, OfNoTokensAsksForNoPieces) {
  const Matrix<float> none(0, 4);
  Matrix<float> dq(0, 4);
  const DecayMixing<float> mixing({1}, {0.5});
  const Counting executor;
  causal_gradient(inputs(none, none, none), ContiguousBlocks{4}, mixing, Operator(), none,
                  {.q = dq}, {}, {.executor = executor});
}

}  // namespace mhla::test
