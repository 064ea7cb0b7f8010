// Counts every call of malloc in this program: a layer with a workspace must make none.
// contract/attention_layer.hpp does so for layers that have parameters.

#include <gtest/gtest.h>

#include <vector>

#include "mhla/layer/adamw.hpp"
#include "mhla/layer/cross_entropy.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/layer_norm.hpp"
#include "mhla/layer/mlp.hpp"
#include "support/allocations.hpp"

namespace mhla {
namespace {

#ifdef MHLA_TEST_COUNTS_MALLOC

using test::allocations;

TEST(LayerAllocation, TheCounterCounts) {
  EXPECT_GE(allocations([] { Matrix<float>::Ones(100, 100).eval(); }), 1);
}

TEST(LayerAllocation, LayersWithAWorkspaceAllocateNothing) {
  constexpr Index n = 700, c = 12, h = 24;
  const Matrix<float> x = Matrix<float>::Ones(n, c);
  Matrix<float> y(n, c), pre(n, h), hidden(n, h);
  std::vector<float> all(static_cast<std::size_t>(2 * c * h + h + c)), gradients = all;
  const auto view = [](std::vector<float>& p) {
    float* const second = p.data() + c * h + h;
    return MlpView<float>{{{p.data(), h, c, c}, {p.data() + c * h, h}},
                          {{second, c, h, h}, {second + c * h, c}}};
  };
  const MlpView<float> parameters = view(all), sums = view(gradients);
  const std::span<float> gain = parameters.second.bias, dgain = sums.second.bias;
  const std::vector<int> labels(static_cast<std::size_t>(n), 3);
  AdamWState<float> state(std::ssize(all));
  std::vector<std::byte> memory(std::size_t{1} << 22);
  ThreadPool pool(3);
  const Call call{.workspace = memory, .executor = pool};
  std::vector<std::byte> packed_memory(packed_dense_bytes<float>(c, h));
  const auto layers = [&] {
    dense(x, PackedDense<float>(packed_memory, parameters.first), pre, pool);
    dense(x, parameters.first, pre, call);
    dense_adjoint(x, parameters.first, pre, y, sums.first, call);
    layer_norm(x, gain, gain, 1e-6, y, pool);
    layer_norm_adjoint(x, gain, 1e-6, x, y, dgain, dgain, call);
    mlp(x, parameters, pre, hidden, y, call);
    mlp_adjoint(x, parameters, pre, hidden, x, y, sums, call);
    cross_entropy(x, labels, y);
    clip_gradients(gradients, 1);
    adamw(all, gradients, state, 1e-3, {}, pool);
  };
  EXPECT_EQ(allocations(layers), 0);
}

#endif

}  // namespace
}  // namespace mhla
