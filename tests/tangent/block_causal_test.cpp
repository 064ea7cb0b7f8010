#include "mhla/tangent/block_causal.hpp"

#include "contract/tangent.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(BlockCausalFloat, Tangent, InFloat<BlockCausalTangentForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(BlockCausalFloat, FullTangent, InFloat<BlockCausalTangentForm>);

TEST(BlockCausalTangent, DirectionsOfLaterStepsAreNotRead) {
  const Matrix<double> q = Matrix<double>::Random(12, 3), v = Matrix<double>::Random(12, 2);
  Matrix<double> m = Matrix<double>::Random(4, 4).cwiseAbs(), dm = Matrix<double>::Random(4, 4);
  const auto tangent = [&] {
    WithTangent<Matrix<double>> to{.value = v, .tangent = v};
    block_causal_tangent(inputs(q, q, v), Contiguous(12, 3), MixingMatrix<double>(m), 2, Operator(),
                         {.q = q}, {.value = to.value, .tangent = to.tangent},
                         {.mixing = MixingMatrix<double>(dm)});
    return to.tangent;
  };
  const Matrix<double> expected = tangent();
  m.topRightCorner(2, 2).setConstant(NAN);
  dm.topRightCorner(2, 2).setConstant(NAN);
  EXPECT_TRUE(same_bits(expected, tangent()));
  dm(3, 0) += 1;
  EXPECT_FALSE(same_bits(expected, tangent()));
}

}  // namespace mhla::test
