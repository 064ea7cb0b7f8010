// The backward forms of half and bfloat16 tensors.

#include "contract/gradient.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/gradient/linear.hpp"
#include "mhla/gradient/softmax.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Half, Gradient, AllForms<Eigen::half>, FormNames);
INSTANTIATE_TYPED_TEST_SUITE_P(BFloat16, Gradient, AllForms<Eigen::bfloat16>, FormNames);

}  // namespace mhla::test
