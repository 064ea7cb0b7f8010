// The forms of half and bfloat16 tensors.

#include "contract/forward.hpp"
#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/linear.hpp"
#include "mhla/attention/streaming.hpp"

namespace mhla::test {
namespace {

using namespace forward;

INSTANTIATE_TYPED_TEST_SUITE_P(Bidirectional, Forward, NarrowScalars<Bidirectional>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Bidirectional, KeptSummaries, NarrowScalars<Bidirectional>,
                               ScalarNames);

INSTANTIATE_TYPED_TEST_SUITE_P(Causal, Forward, NarrowScalars<Causal>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Causal, KeptSummaries, NarrowScalars<Causal>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Causal, CausalForward, NarrowScalars<Causal>, ScalarNames);

INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, Forward, NarrowScalars<LinearCausal>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, KeptSummaries, NarrowScalars<LinearCausal>,
                               ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausal, CausalForward, NarrowScalars<LinearCausal>,
                               ScalarNames);

INSTANTIATE_TYPED_TEST_SUITE_P(Streaming, Forward, NarrowScalars<Streamed>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Streaming, CausalForward, NarrowScalars<Streamed>, ScalarNames);

}  // namespace
}  // namespace mhla::test
