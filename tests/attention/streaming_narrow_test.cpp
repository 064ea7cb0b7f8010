// Streams of half and bfloat16 tensors.

#include "contract/forward.hpp"

namespace mhla::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Streaming, Forward, NarrowScalars<forward::Streamed>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Streaming, CausalForward, NarrowScalars<forward::Streamed>,
                               ScalarNames);

}  // namespace
}  // namespace mhla::test
