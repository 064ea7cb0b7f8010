#include "contract/gradient_batch.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(AllForms, BatchGradient, BackwardForms);

}  // namespace mhla::test
