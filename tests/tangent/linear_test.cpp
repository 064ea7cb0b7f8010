#include "mhla/tangent/linear.hpp"

#include "contract/tangent.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(LinearFloat, Tangent, InFloat<LinearTangent>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearFloat, FullTangent, InFloat<LinearTangent>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalFloat, Tangent, InFloat<LinearCausalTangent>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalFloat, FullTangent, InFloat<LinearCausalTangent>);
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCausalFloat, CausalTangent, InFloat<LinearCausalTangent>);

}  // namespace mhla::test
