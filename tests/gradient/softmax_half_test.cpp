#include "contract/gradient.hpp"
#include "mhla/gradient/softmax.hpp"

namespace mhla::test {

using Softmax = SoftmaxForm<false>;
using SoftmaxCausal = SoftmaxForm<true>;

INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxHalf, Gradient, InHalf<Softmax>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxCausalHalf, Gradient, InHalf<SoftmaxCausal>);

}  // namespace mhla::test
