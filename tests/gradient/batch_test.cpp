#include "contract/gradient_batch.hpp"

namespace mhla::test {

using Forms = testing::Types<BidirectionalForm, CausalForm, LinearForm<false>, LinearForm<true>,
                             SoftmaxForm<false>, SoftmaxForm<true>>;
INSTANTIATE_TYPED_TEST_SUITE_P(AllForms, BatchGradient, Forms);

}  // namespace mhla::test
