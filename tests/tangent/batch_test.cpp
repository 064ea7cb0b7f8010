#include "contract/tangent_batch.hpp"
#include "mhla/tangent/bidirectional.hpp"
#include "mhla/tangent/driver.hpp"

namespace mhla::test {

TEST(BatchTangents, EveryHeadMovesAlongItsOwnDirection) {
  constexpr Index kTokens = 4, kHeads = 3;
  MixingMatrix<double> mixing{Pattern(2, 2)};
  mixing.view().for_each([](double& c) { c = 0.5; });
  Tensor<double> ones({2, kTokens, kHeads, 2}), direction({2, kTokens, kHeads, 2});
  std::ranges::fill(ones.data(), 1);
  for (Index s = 0; s < 2; ++s) {
    for (Index t = 0; t < kTokens; ++t) {
      for (Index h = 0; h < kHeads; ++h) direction(s, t, h, 1) = double(10 * s + h);
    }
  }
  const BatchTangents<double> along{.v = direction};
  const Operator op{Identity{}, Identity{}, KeySum{}};
  const auto out =
      bidirectional_tangent(inputs(ones, ones, ones), Contiguous(kTokens, 2), mixing, op, along);
  for (Index s = 0; s < 2; ++s) {
    for (Index h = 0; h < kHeads; ++h) {
      EXPECT_NEAR(out.tangent(s, 3, h, 1), double(10 * s + h), 1e-12) << s << ", " << h;
      EXPECT_EQ(out.tangent(s, 3, h, 0), 0);
    }
  }
}

INSTANTIATE_TYPED_TEST_SUITE_P(AllForms, BatchTangent, TangentForms);

}  // namespace mhla::test
