#include "mhla/tangent/causal.hpp"

#include "contract/tangent.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(CausalFloat, Tangent, InFloat<CausalTangentForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalFloat, FullTangent, InFloat<CausalTangentForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalFloat, CausalTangent, InFloat<CausalTangentForm>);

}  // namespace mhla::test
