// Every call of malloc in this program is counted; layers that got a workspace must make none.

#include <gtest/gtest.h>

#include <vector>

#include "mhla/layer/adamw.hpp"
#include "mhla/layer/cross_entropy.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/language_block.hpp"
#include "mhla/layer/language_layer.hpp"
#include "mhla/layer/layer_norm.hpp"
#include "mhla/layer/mlp.hpp"
#include "mhla/layer/sana_block.hpp"
#include "mhla/layer/video_block.hpp"
#include "mhla/layer/video_layer.hpp"
#include "mhla/layer/vision_block.hpp"
#include "mhla/layer/vision_layer.hpp"
#include "mhla/layer/vlt_stage.hpp"
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

/// Runs a layer forwards and backwards with memory of its own.
/// \param condition  columns of the layer's condition; 0 if it has none
template <class L>
Index allocations_of(const L& layer, Index rows, Index batch, Index condition = 0) {
  const Matrix<float> x = Matrix<float>::Ones(rows, layer.options().channels);
  const Matrix<float> c = Matrix<float>::Ones(batch, condition);
  Matrix<float> y = x, dx = x, dc = c;
  std::vector<float> gradients(layer.parameters().size());
  ThreadPool pool(3);
  LayerCall call{.batch = batch, .executor = pool};
  std::vector<std::byte> memory(layer.workspace_bytes(rows, call)),
      more(layer.backward_workspace_bytes(rows, call)), kept(layer.kept_bytes(rows, batch));
  const auto forward = [&] {
    if constexpr (requires { layer(x, c, y, call); }) {
      layer(x, c, y, call);
    } else {
      layer(x, y, call);
    }
  };
  return allocations([&] {
    call.workspace = memory;
    call.kept = {};
    forward();
    call.kept = kept;
    forward();
    call.workspace = more;
    if constexpr (requires { layer(x, c, y, call); }) {
      layer.backward(x, c, y, dx, dc, gradients, call);
    } else {
      layer.backward(x, y, dx, gradients, call);
    }
  });
}

/// Runs a token of each of two sequences with memory of its own.
template <class L>
Index allocations_of_appending(const L& layer) {
  auto state = layer.start(2);
  const Matrix<float> x = Matrix<float>::Ones(2, layer.options().channels);
  Matrix<float> y = x;
  std::vector<std::byte> memory(layer.append_workspace_bytes(state, 2));
  const std::vector<Index> offsets{0, 0, 2};  // no token of the first
  return allocations([&] {
    layer.append(state, x, y, {.workspace = memory});
    layer.append(state, x, offsets, y, {.workspace = memory});
  });
}

TEST(LayerAllocation, AttentionLayersWithAWorkspaceAllocateNothing) {
  EXPECT_EQ(allocations_of(VisionLayer<float>({.heads = 2,
                                               .tokens = {4, 6},
                                               .block = {2, 3},
                                               .order = TokenOrder::kBlocks,
                                               .channels = 12,
                                               .qk_norm = true}),
                           72, 3),
            0);
  EXPECT_EQ(allocations_of(VideoLayer<float>({.heads = 2,
                                              .grid = {2, 4, 6},
                                              .layout = {1, 2, 2},
                                              .channels = 12,
                                              .gate = true,
                                              .lepe = true}),
                           96, 2),
            0);
  for (const char* map : {"relu", "hedgehog", "t2r", "dpfp", "elementwise_product"}) {
    const LanguageLayer<float> language({.heads = 4,
                                         .key_heads = 2,
                                         .channels = 16,
                                         .feature_map = map,
                                         .chunk = 4,
                                         .chunks = 6,
                                         .short_convolution = true});
    EXPECT_EQ(allocations_of(language, 48, 2), 0) << map;
    EXPECT_EQ(allocations_of_appending(language), 0) << map;
  }
}

TEST(LayerAllocation, BlocksWithAWorkspaceAllocateNothing) {
  const VisionOptions attention{
      .heads = 2, .tokens = {4, 6}, .block = {2, 3}, .order = TokenOrder::kBlocks};
  EXPECT_EQ(allocations_of(DitBlock<float>({.attention = attention,
                                            .channels = 12,
                                            .convolution = DitConvolution::kImage}),
                           72, 3, 12),
            0);
  EXPECT_EQ(allocations_of(
                DeitBlock<float>({.attention = deit_attention(attention), .channels = 12}), 48, 2),
            0);
  EXPECT_EQ(allocations_of(
                WanBlock<float>({.attention = {.heads = 2, .grid = {2, 4, 6}, .layout = {1, 2, 2}},
                                 .channels = 12,
                                 .hidden = 40}),
                96, 2, 72),
            0);
  EXPECT_EQ(allocations_of(SanaBlock<float>({.attention = attention, .channels = 12}), 48, 2, 72),
            0);
  EXPECT_EQ(allocations_of(VltStage<float>({.attention = attention, .channels = 12}), 48, 2), 0);
  const LanguageBlock<float> language(
      {.attention = {.heads = 4, .chunk = 4, .chunks = 6, .short_convolution = true},
       .channels = 16,
       .hidden = 40});
  EXPECT_EQ(allocations_of(language, 48, 2), 0);
  EXPECT_EQ(allocations_of_appending(language), 0);
}

#endif

}  // namespace
}  // namespace mhla
