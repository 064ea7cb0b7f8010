#include "contract/tangent_batch.hpp"
#include "mhla/tangent/driver.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(AllForms, BatchTangent, TangentForms);

}  // namespace mhla::test
