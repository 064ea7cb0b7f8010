#include "mhla/gradient/causal.hpp"

#include "contract/gradient.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(CausalFloat, Gradient, InFloat<CausalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalFloat, FullGradient, InFloat<CausalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalFloat, CausalGradient, InFloat<CausalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalFloat, MixingGradient, InFloat<CausalForm>);

}  // namespace mhla::test
