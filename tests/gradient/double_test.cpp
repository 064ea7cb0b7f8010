// The backward forms in double.

#include "contract/gradient.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/gradient/linear.hpp"
#include "mhla/gradient/softmax.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Double, Gradient, AllForms<double>, FormNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Double, FullGradient, AllForms<double>, FormNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Double, DoubleGradient, AllForms<double>, FormNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Double, CausalGradient, CausalForms<double>, FormNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Double, MixingGradient, MixingForms<double>, FormNames);

}  // namespace mhla::test
