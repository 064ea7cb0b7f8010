#include "mhla/attention/causal_decay.hpp"

#include "contract/forward.hpp"
#include "mhla/attention/linear.hpp"
#include "support/forward_forms.hpp"

namespace mhla::test {
namespace {

TEST_FORM(CausalDecay, forward::CausalDecay, float, double);

/// One head of n tokens with D = 24 and E = 70, more than a piece of a scan has columns.
struct Sequence {
  Matrix<double> q, k, v;
  explicit Sequence(Index n) {
    Random rng(static_cast<std::uint64_t>(n));
    q = rng.matrix<double>(n, 24), k = rng.matrix<double>(n, 24), v = rng.matrix<double>(n, 70);
  }
  Inputs<double> in() const { return inputs(q, k, v); }
};

TEST(CausalDecay, OneTermWithoutDecayIsLinearAttention) {
  const Sequence sequence(300);
  const Matrix<double> o =
      causal(sequence.in(), Contiguous(300, 16), DecayMixing<double>({1}, {1}));
  EXPECT_LT((o - linear_causal(sequence.in())).cwiseAbs().maxCoeff(), 1e-13);
}

TEST(CausalDecay, LongSequencesAreTheDefinition) {
  const Sequence sequence(1200);
  const Contiguous blocks(1200, 8);
  const DecayMixing<double> mixing({0.5, 0.3, 2}, {0.97, 0.5, 0.999});
  const Operator op{EluPlusOne{}};
  const Matrix<double> exact =
      naive_attention(sequence.in(), blocks, decay_matrix(mixing, 150), op, Order::kCausal);
  EXPECT_LT((causal(sequence.in(), blocks, mixing, op) - exact).cwiseAbs().maxCoeff(), 1e-12);
}

TEST(CausalDecay, RefusesBlocksAndTermsThatAreNone) {
  const Sequence sequence(24);
  const DecayMixing<double> mixing({1}, {0.5});
  const auto text = [&](const auto& blocks, const DecayView<const double>& m) {
    return message_of<error>([&] { causal(sequence.in(), blocks, m); });
  };
  EXPECT_EQ(
      text(Contiguous(23, 4), mixing),
      "mhla::causal: blocks covers 23 tokens, expected 24 tokens: one per row, or along axis 1 "
      "of [B, N, H, D]");
  EXPECT_EQ(text(Contiguous(24, 4), {}), "mhla::causal: mixing has no term, expected at least one");
}

}  // namespace
}  // namespace mhla::test
