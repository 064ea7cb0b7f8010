#include "contract/forward.hpp"
#include "mhla/attention/linear.hpp"
#include "support/forward_forms.hpp"

namespace mhla::test {
namespace {

TEST_FORM(LinearBidirectional, forward::LinearBidirectional, float, double);

TEST(LinearBidirectional, IsTheBidirectionalFormWithOneBlock) {
  Random rng(1);
  const auto x = rng.matrix<float>(70, 5);
  const MixingMatrix<float> one(Matrix<float>::Ones(1, 1));
  EXPECT_TRUE(same_bits(linear_bidirectional(inputs(x, x, x)),
                        bidirectional(x, x, x, Contiguous(70, 70), one)));
}

}  // namespace
}  // namespace mhla::test
