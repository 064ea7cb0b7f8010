#include "mhla/tangent/block_causal.hpp"

#include "contract/tangent.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(BlockCausalFloat, Tangent, InFloat<BlockCausalTangentForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(BlockCausalFloat, FullTangent, InFloat<BlockCausalTangentForm>);

}  // namespace mhla::test
