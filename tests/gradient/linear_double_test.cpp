#include "contract/gradient.hpp"
#include "mhla/gradient/linear.hpp"

namespace mhla::test {

using Linear = LinearForm<false>;
using LinearCausal = LinearForm<true>;

INSTANTIATE_TYPED_TEST_SUITE_P(LinearDouble, Gradient, InDouble<Linear>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearDouble, FullGradient, InDouble<Linear>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearDouble, DoubleGradient, InDouble<Linear>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalDouble, Gradient, InDouble<LinearCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalDouble, FullGradient, InDouble<LinearCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalDouble, DoubleGradient, InDouble<LinearCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalDouble, CausalGradient, InDouble<LinearCausal>);

}  // namespace mhla::test
