// The causal form of half and bfloat16 tensors.

#include "contract/forward.hpp"

namespace mhla::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Causal, Forward, NarrowScalars<forward::Causal>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Causal, KeptSummaries, NarrowScalars<forward::Causal>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Causal, CausalForward, NarrowScalars<forward::Causal>, ScalarNames);

}  // namespace
}  // namespace mhla::test
