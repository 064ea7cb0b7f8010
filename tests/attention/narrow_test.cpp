// The forms of half and bfloat16 tensors.

#include "contract/forward.hpp"
#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/linear.hpp"
#include "mhla/attention/streaming.hpp"
#include "support/forward_forms.hpp"

namespace mhla::test {
namespace {

TEST_FORM(Bidirectional, forward::Bidirectional, Eigen::half, Eigen::bfloat16);
TEST_FORM(Causal, forward::Causal, Eigen::half, Eigen::bfloat16);
TEST_FORM(LinearCausal, forward::LinearCausal, Eigen::half, Eigen::bfloat16);
TEST_FORM(Streaming, forward::Streamed, Eigen::half, Eigen::bfloat16);

}  // namespace
}  // namespace mhla::test
