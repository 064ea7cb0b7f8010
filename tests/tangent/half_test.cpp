// All tangent forms of half and bfloat16 tensors.

#include "contract/tangent.hpp"
#include "mhla/tangent/bidirectional.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Half, Tangent, AllTangents<Eigen::half>, FormNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Bfloat16, Tangent, AllTangents<Eigen::bfloat16>, FormNames);

}  // namespace mhla::test
