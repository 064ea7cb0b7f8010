#include "mhla/gradient/causal_decay.hpp"

#include "contract/gradient.hpp"
#include "support/gradient_forms.hpp"

namespace mhla::test {

TEST_GRADIENT(CausalDecay, CausalDecayForm, float, double);

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
