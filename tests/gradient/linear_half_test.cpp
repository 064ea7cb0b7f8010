#include "contract/gradient.hpp"
#include "mhla/gradient/linear.hpp"

namespace mhla::test {

using Linear = LinearForm<false>;
using LinearCausal = LinearForm<true>;

INSTANTIATE_TYPED_TEST_SUITE_P(LinearHalf, Gradient, InHalf<Linear>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalHalf, Gradient, InHalf<LinearCausal>);

}  // namespace mhla::test
