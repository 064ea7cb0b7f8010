#include "mhla/gradient/bidirectional.hpp"

#include "contract/gradient.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalFloat, Gradient, InFloat<BidirectionalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalFloat, FullGradient, InFloat<BidirectionalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalFloat, MixingGradient, InFloat<BidirectionalForm>);

}  // namespace mhla::test
