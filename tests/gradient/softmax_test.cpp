#include "mhla/gradient/softmax.hpp"

#include "contract/gradient.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_oracle.hpp"
#include "support/message_of.hpp"

namespace mhla::test {

TEST_GRADIENT(Softmax, Softmax, float);
TEST_GRADIENT(SoftmaxCausal, SoftmaxCausal, float);

TEST(SoftmaxGradientBytes, ErrorsNameTheFunctionThatCounts) {
  const MatrixView<const float> wide(nullptr, Index{1} << 40, Index{1} << 40, Index{1} << 40);
  const std::string text = message_of<error>(
      [&] { softmax_gradient_workspace_bytes(Inputs<float>{.q = wide, .k = wide, .v = wide}); });
  EXPECT_TRUE(text.starts_with("mhla::softmax_gradient_workspace_bytes: workspace ")) << text;
}

namespace {

const AnyGradient<float>&kSoftmax = kGradientOn<Softmax, float>,
      &kCausal = kGradientOn<SoftmaxCausal, float>;

/// N queries and M keys of any size.
GradientProblem<float> softmax_problem(const AnyGradient<float>& form, Index n, Index m, Index d,
                                       Index e, double size) {
  Random rng(static_cast<std::uint64_t>((n * 200 + m) * 20 + d));
  GradientProblem<float> p;
  p.causal = form.causal;
  p.mixes = false;
  p.tensors = {rng.matrix<float>(n, d, -size, size), rng.matrix<float>(m, d, -size, size),
               rng.matrix<float>(m, e)};
  p.dout = rng.matrix<float>(n, e);
  form.fit(p);
  return p;
}

void expect_derivative(const AnyGradient<float>& form, const GradientProblem<float>& p) {
  Random rng(1);
  const auto g = gradients_of(form, p).values<long double>();
  auto direction = g, start = g;
  for (const Part part : kAllParts) {
    start[part].setZero();
    for (long double& x : direction[part].reshaped()) x = rng.uniform(-1, 1);
  }
  Oracle<float>(form, p).expect(direction, start, g);
}

// Tiles have 64 keys, strips 64 queries; scores are a few units or a few hundred.
TEST(SoftmaxGradient, SizesAroundWholeTilesAreNoException) {
  for (const Index n : {0, 1, 63, 64, 65, 129}) {
    for (const Index m : {0, 1, 63, 64, 65, 129}) {
      for (const Index d : {1, 16, 17}) {
        for (const double size : {1.0, 10.0}) {
          expect_derivative(kSoftmax, softmax_problem(kSoftmax, n, m, d, 17 - d, size));
          if (n != m) continue;
          expect_derivative(kCausal, softmax_problem(kCausal, n, n, d, 17 - d, size));
        }
      }
    }
  }
}

void expect_queries_without_keys_count_as_masked(const AnyGradient<float>& form,
                                                 const Matrix<bool>& keys) {
  auto p = softmax_problem(form, 100, 100, 8, 8, 1);
  p.key_mask = keys;
  p.tensors[kQ].topRows(70).setConstant(NAN);
  p.dout.topRows(70).setConstant(NAN);
  GradientBuffers<float> bare(p, [] { return -0.0F; });  // which adding a zero would change
  GradientBuffers<float> masked = bare;
  add_gradients(form, p, bare);
  p.query_mask = Matrix<bool>::Constant(1, 100, form.causal);
  p.query_mask.leftCols(70).setConstant(false);
  add_gradients(form, p, masked);
  EXPECT_EQ(different_bits(bare, masked), "");
}

TEST(SoftmaxGradient, QueriesWithoutKeysCountAsMasked) {
  Matrix<bool> keys = Matrix<bool>::Constant(1, 100, false);
  expect_queries_without_keys_count_as_masked(kSoftmax, keys);
  keys.rightCols(30).setConstant(true);
  expect_queries_without_keys_count_as_masked(kCausal, keys);
}

TEST(SoftmaxGradient, MemoryGrowsWithTheTokensAndNotWithTheirSquare) {
  const MatrixView<const float> x(nullptr, 1 << 19, 64, 64), y(nullptr, 1 << 20, 64, 64);
  const auto bytes = softmax_gradient_workspace_bytes(Inputs<float>{.q = x, .k = x, .v = x});
  EXPECT_LT(softmax_gradient_workspace_bytes(Inputs<float>{.q = y, .k = y, .v = y}), 2 * bytes);
}

}  // namespace
}  // namespace mhla::test
