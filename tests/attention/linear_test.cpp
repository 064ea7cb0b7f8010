#include "mhla/attention/linear.hpp"

#include "contract/forward.hpp"

namespace mhla::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, Forward, EveryScalar<forward::LinearCausal>,
                               ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, KeptSummaries, EveryScalar<forward::LinearCausal>,
                               ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, CausalForward, EveryScalar<forward::LinearCausal>,
                               ScalarNames);

}  // namespace
}  // namespace mhla::test
