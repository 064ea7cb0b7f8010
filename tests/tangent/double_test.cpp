// All tangent forms in double.

#include "contract/tangent.hpp"
#include "mhla/tangent/bidirectional.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Double, Tangent, AllTangents<double>, FormNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Double, FullTangent, AllTangents<double>, FormNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Double, CausalTangent, CausalTangents<double>, FormNames);

}  // namespace mhla::test
