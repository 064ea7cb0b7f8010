// The backward forms in double.

#include "contract/gradient.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/gradient/linear.hpp"
#include "mhla/gradient/softmax.hpp"
#include "support/gradient_forms.hpp"

namespace mhla::test {

TEST_GRADIENT(Bidirectional, BidirectionalForm, double);
TEST_GRADIENT(Causal, CausalForm, double);
TEST_GRADIENT(Linear, Linear, double);
TEST_GRADIENT(LinearCausal, LinearCausal, double);
TEST_GRADIENT(Softmax, Softmax, double);
TEST_GRADIENT(SoftmaxCausal, SoftmaxCausal, double);

}  // namespace mhla::test
