#include "mhla/gradient/linear.hpp"

#include "contract/gradient.hpp"

namespace mhla::test {

using Linear = LinearForm<false>;
using LinearCausal = LinearForm<true>;

INSTANTIATE_TYPED_TEST_SUITE_P(LinearFloat, Gradient, InFloat<Linear>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearFloat, FullGradient, InFloat<Linear>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalFloat, Gradient, InFloat<LinearCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalFloat, FullGradient, InFloat<LinearCausal>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalFloat, CausalGradient, InFloat<LinearCausal>);

}  // namespace mhla::test
