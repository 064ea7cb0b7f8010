#include "contract/gradient.hpp"
#include "mhla/gradient/causal.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(CausalHalf, Gradient, InHalf<CausalForm>);

}  // namespace mhla::test
