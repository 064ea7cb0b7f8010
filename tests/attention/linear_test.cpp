#include "mhla/attention/linear.hpp"

#include "contract/forward.hpp"

namespace mhla::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, Forward, WideScalars<forward::LinearCausal>,
                               ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, KeptSummaries, WideScalars<forward::LinearCausal>,
                               ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, CausalForward, WideScalars<forward::LinearCausal>,
                               ScalarNames);

}  // namespace
}  // namespace mhla::test
