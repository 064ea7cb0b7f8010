#include "mhla/gradient/softmax.hpp"

#include "contract/gradient.hpp"
#include "support/message_of.hpp"

namespace mhla::test {

using Softmax = SoftmaxForm<false>;
using SoftmaxCausal = SoftmaxForm<true>;

INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxFloat, Gradient, InFloat<Softmax>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxFloat, FullGradient, InFloat<Softmax>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxCausalFloat, Gradient, InFloat<SoftmaxCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxCausalFloat, FullGradient, InFloat<SoftmaxCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxCausalFloat, CausalGradient, InFloat<SoftmaxCausal>);

TEST(SoftmaxGradientBytes, ErrorsNameTheFunctionThatCounts) {
  const MatrixView<const float> wide(nullptr, Index{1} << 40, Index{1} << 40, Index{1} << 40);
  const std::string text = message_of<error>(
      [&] { softmax_gradient_workspace_bytes(Inputs<float>{.q = wide, .k = wide, .v = wide}); });
  EXPECT_TRUE(text.starts_with("mhla::softmax_gradient_workspace_bytes: workspace ")) << text;
}

}  // namespace mhla::test
