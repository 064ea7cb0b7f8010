// The backward forms of half and bfloat16 tensors.

#include "contract/gradient.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/gradient/linear.hpp"
#include "mhla/gradient/softmax.hpp"
#include "support/gradient_forms.hpp"

namespace mhla::test {

TEST_GRADIENT(Bidirectional, BidirectionalForm, Eigen::half, Eigen::bfloat16);
TEST_GRADIENT(Causal, CausalForm, Eigen::half, Eigen::bfloat16);
TEST_GRADIENT(Linear, Linear, Eigen::half, Eigen::bfloat16);
TEST_GRADIENT(LinearCausal, LinearCausal, Eigen::half, Eigen::bfloat16);
TEST_GRADIENT(Softmax, Softmax, Eigen::half, Eigen::bfloat16);
TEST_GRADIENT(SoftmaxCausal, SoftmaxCausal, Eigen::half, Eigen::bfloat16);

}  // namespace mhla::test
