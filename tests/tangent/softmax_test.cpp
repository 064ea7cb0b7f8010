#include "mhla/tangent/softmax.hpp"

#include "contract/tangent.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxFloat, Tangent, InFloat<SoftmaxTangent>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxFloat, FullTangent, InFloat<SoftmaxTangent>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxCausalFloat, Tangent, InFloat<SoftmaxCausalTangent>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxCausalFloat, FullTangent, InFloat<SoftmaxCausalTangent>);
INSTANTIATE_TYPED_TEST_SUITE_P(SoftmaxCausalFloat, CausalTangent, InFloat<SoftmaxCausalTangent>);

}  // namespace mhla::test
