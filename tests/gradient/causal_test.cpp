#include "mhla/gradient/causal.hpp"

#include "contract/gradient.hpp"
#include "support/gradient_forms.hpp"

namespace mhla::test {

TEST_GRADIENT(Causal, CausalForm, float);

}  // namespace mhla::test
