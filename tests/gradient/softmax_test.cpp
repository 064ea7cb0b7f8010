#include "mhla/gradient/softmax.hpp"

#include "contract/gradient.hpp"

namespace mhla::test {

using Softmax = SoftmaxForm<false>;
using SoftmaxCausal = SoftmaxForm<true>;

INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxFloat, Gradient, InFloat<Softmax>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxFloat, FullGradient, InFloat<Softmax>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxCausalFloat, Gradient, InFloat<SoftmaxCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxCausalFloat, FullGradient, InFloat<SoftmaxCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxCausalFloat, CausalGradient, InFloat<SoftmaxCausal>);

}  // namespace mhla::test
