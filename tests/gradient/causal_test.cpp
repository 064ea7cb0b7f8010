#include "mhla/gradient/causal.hpp"

#include "contract/gradient.hpp"
#include "support/gradient_forms.hpp"

namespace mhla::test {

TEST_GRADIENT(Causal, CausalForm, float);

TEST(CausalGradient, OfACoefficientOfTheDiagonalHasThePairsOfAllStrips) {
  constexpr Index kTokens = 200;
  const Matrix<float> ones = Matrix<float>::Ones(kTokens, 1);
  MixingMatrix<float> mixing{Pattern(1, 1)}, dmixing{Pattern(1, 1)};
  mixing.view().at(0, 0) = 1;
  causal_gradient(inputs(ones, ones, ones), Contiguous(kTokens, kTokens), mixing,
                  Operator{Identity{}, Identity{}, NoNormalizer{}}, ones, {},
                  {.mixing = dmixing.view()});
  EXPECT_EQ(dmixing.view()(0, 0), kTokens * (kTokens + 1) / 2);
}

}  // namespace mhla::test
