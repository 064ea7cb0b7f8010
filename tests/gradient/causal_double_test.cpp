#include "contract/gradient.hpp"
#include "mhla/gradient/causal.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(CausalDouble, Gradient, InDouble<CausalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalDouble, FullGradient, InDouble<CausalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalDouble, DoubleGradient, InDouble<CausalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalDouble, CausalGradient, InDouble<CausalForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(CausalDouble, MixingGradient, InDouble<CausalForm>);

}  // namespace mhla::test
