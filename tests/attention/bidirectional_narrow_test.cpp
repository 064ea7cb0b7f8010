// The bidirectional form of half and bfloat16 tensors.

#include "contract/forward.hpp"

namespace mhla::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Bidirectional, Forward, NarrowScalars<forward::Bidirectional>,
                               ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Bidirectional, KeptSummaries, NarrowScalars<forward::Bidirectional>,
                               ScalarNames);

}  // namespace
}  // namespace mhla::test
