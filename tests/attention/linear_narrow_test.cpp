// Causal linear attention of half and bfloat16 tensors.

#include "contract/forward.hpp"

namespace mhla::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, Forward, NarrowScalars<forward::LinearCausal>,
                               ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, KeptSummaries, NarrowScalars<forward::LinearCausal>,
                               ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, CausalForward, NarrowScalars<forward::LinearCausal>,
                               ScalarNames);

}  // namespace
}  // namespace mhla::test
