#include "contract/gradient.hpp"
#include "mhla/gradient/bidirectional.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalDouble, Gradient, InDouble<BidirectionalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalDouble, FullGradient, InDouble<BidirectionalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalDouble, DoubleGradient, InDouble<BidirectionalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalDouble, MixingGradient, InDouble<BidirectionalForm>);

}  // namespace mhla::test
