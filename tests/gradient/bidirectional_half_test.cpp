#include "contract/gradient.hpp"
#include "mhla/gradient/bidirectional.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalHalf, Gradient, InHalf<BidirectionalForm>);

}  // namespace mhla::test
