#include "mhla/gradient/causal.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include "contract/gradient.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "support/gradient_forms.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

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

TEST(CausalGradient, MemoryThatAnotherFormKeptIsRefused) {
  Random rng(1);
  const Matrix<float> x = rng.matrix<float>(64, 8);
  const auto in = inputs(x, x, x);
  const Contiguous blocks(64, 16);
  const MixingMatrix<float> mixing(Matrix<float>::Ones(4, 4));
  std::vector<std::byte> kept(causal_kept_bytes(in, blocks));
  ASSERT_EQ(kept.size(), bidirectional_kept_bytes(in, blocks));
  Matrix<float> out(64, 8), dq = Matrix<float>::Zero(64, 8);
  causal(in, blocks, mixing, Operator<>(), out, {.kept = kept});
  EXPECT_NE(message_of<option_error>([&] {
              bidirectional_gradient(in, blocks, mixing, Operator<>(), x, {.q = dq}, {},
                                     {.kept = kept});
            }).find("kept has not been written"),
            std::string::npos);
  EXPECT_TRUE(dq.isZero(0));
  causal_gradient(in, blocks, mixing, Operator<>(), x, {.q = dq}, {}, {.kept = kept});
  EXPECT_FALSE(dq.isZero(0));
}

}  // namespace mhla::test
