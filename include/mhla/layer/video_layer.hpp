#pragma once

/// \file
/// The self-attention layer of the authors' video models (Wan2.1). For B videos of N tokens in
/// raster order and C channels in H heads of D:
///
///     q, k, v = x Wq^T + bq, ...,   q, k = rms_norm(q), rms_norm(k)                 [B*N, C] each
///     f(.)    = relu(.) + eps
///     a       = MHLA(rotary(f(q)), rotary(f(k)), v), its denominators of f(q), f(k) [B*N, C]
///     m       = rms_norm(a) of every head * silu(x Wg^T + bg) + convolution(v)      [B*N, C]
///     y       = m Wo^T + bo                                                         [B*N, C]
///
/// The gate, the convolution (LePE, depthwise 3 x 3 x 3) and the normaliser are options; released
/// models have no normaliser. With VideoOptions::softmax, a is softmax attention of rotary(q),
/// rotary(k) and v.
/// Parameters have the authors' names: {q,k,v,o}.{weight,bias}, norm_{q,k}.weight, g_norm.weight,
/// g.{weight,bias}, block_attn.conv.weight and lepe.{weight,bias}. Cost: 8*N*C^2 flops for the
/// projections, 10*N*C^2 with a gate, and 4*N*C*D + 2*M^2*C*D for MHLA; about 8*N*C numbers are
/// kept. Source: arXiv:2601.07832, section 4.1, and the released layers.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/initial.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/mixing_tensor.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rotary_table.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/layer/steps.hpp"
#include "mhla/policy/by_name.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a video layer.
struct VideoOptions {
  Index heads = 12;
  GridShape grid{1};    ///< tokens of a video: frames, rows, columns
  GridShape layout{1};  ///< blocks along each axis
  Index channels = 0;   ///< C; 0 for that of a file
  bool qk_norm = true;  ///< RMSNorm of q and k, over all heads together
  bool gate = false;
  bool lepe = false;
  AnyNormalizer normalizer = NoNormalizer{};  ///< or CrossQuery{1e-6}, as some configurations have
  double feature_eps = 1e-6;
  double norm_eps = 1e-6;
  double rotary_base = 10000;
  bool mixing_per_head = false;  ///< the mixing matrix is [H,M,M], one per head
  /// Softmax attention without features, normaliser, blocks and mixing, as a baseline.
  bool softmax = false;
  /// Sizes of a table of coefficients by offset between blocks, such as {3, 3}, in place of the
  /// mixing matrix (distance_mixing.hpp); 0 for none.
  GridShape offsets{0};
};

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator T>
struct VideoFamily {
  using Scalar = T;
  using Options = VideoOptions;
  static constexpr const char* kName = "VideoLayer";
  static constexpr const char* kOutput = "o.weight";

  static VideoOptions checked(VideoOptions o);
  static Index tokens(const VideoOptions& o) { return volume(o.grid); }
  static MHLA_COLD Value build(Graph<T>& g, Value input, const VideoOptions& o);
};

/// Returns the options after checking that they fit each other.
template <Accumulator T>
VideoOptions VideoFamily<T>::checked(VideoOptions o) {
  expect_grid(kName, "grid", o.grid);
  for (int axis = 0; axis < 3; ++axis) {
    if (o.layout[axis] < 1 || o.grid[axis] % o.layout[axis] != 0) {
      fail_option(kName, "layout", "is " + grid_text(o.layout),
                  "one that divides the grid " + grid_text(o.grid));
    }
  }
  expect_layer_offsets(kName, o.offsets);
  expect_positive(kName, "heads", o.heads);
  expect_channels(kName, o.channels);
  if (o.channels % o.heads != 0 || o.channels / o.heads % 2 != 0) {
    fail_option(kName, "channels", "is " + std::to_string(o.channels),
                "an even number for each of the " + std::to_string(o.heads) + " heads");
  }
  expect_not_negative(kName, "norm_eps", o.norm_eps);
  expect_above_zero(kName, "rotary_base", o.rotary_base);
  return o;
}

template <Accumulator T>
Value VideoFamily<T>::build(Graph<T>& g, Value input, const VideoOptions& o) {
  const Index c = o.channels, width = c / o.heads;
  const GridShape& n = o.layout;
  const Grid blocks(o.grid, {o.grid[0] / n[0], o.grid[1] / n[1], o.grid[2] / n[2]});
  using Weights = WeightSlices<DenseView>;
  const auto weights = [&](const char* name) { return g.dense(name, {c, c}); };
  const Weights to_q = weights("q"), to_k = weights("k"), to_v = weights("v"), to_o = weights("o");
  const Initial ones = Initial::ones();
  const auto q_gain = g.tensor("norm_q.weight", {c}, ones, {o.qk_norm, "qk_norm"});
  const auto k_gain = g.tensor("norm_k.weight", {c}, ones, {o.qk_norm, "qk_norm"});
  const auto head_gain = g.tensor("g_norm.weight", {width}, ones);
  const Weights to_gate = g.dense("g", {c, c}, {}, {o.gate, "gate"});
  const MixingTensor mixing =
      mixing_tensor(g, "block_attn", n, o.offsets, o.mixing_per_head ? o.heads : 0, o.softmax);
  const auto lepe =
      g.template weights<ConvolutionView>("lepe", {c, 1, 3, 3, 3}, {}, {o.lepe, "lepe"});

  const auto angles = std::make_shared<RotaryTable<T>>();
  g.when_prepared([=] { *angles = RotaryTable<T>::grid(o.grid, width, o.rotary_base); });
  // Returns features, and the same rotated.
  const auto rotated = [&](const Weights& projection, ParameterSlice gain) {
    Value x = dense_step(g, input, projection);
    if (o.qk_norm) x = g.remade(rms_norm_step(g, x, gain, o.norm_eps));
    if (!o.softmax) x = relu_step(g, x, o.feature_eps);
    return std::pair(x, rotary_step<T>(g, x, angles, o.heads));
  };
  // The gradient of x is summed in reverse: gate, v, q, k.
  const auto [k_features, k] = rotated(to_k, k_gain);
  const auto [q_features, q] = rotated(to_q, q_gain);
  const Value v = dense_step(g, input, to_v);
  AttentionValues in{q, k, v};
  if (o.normalizer.sums() != WeightSums::kNone && !o.softmax) {
    in.normalizer_q = q_features, in.normalizer_k = k_features;
  }
  const Operator<Identity, Identity, AnyNormalizer> op{{}, {}, o.normalizer};
  const Value a = attention_step(g, in, o.heads, blocks, op, mixing);
  const Value mixed =
      o.gate ? gated_rms_norm_step(g, a, head_gain, o.norm_eps, dense_step(g, input, to_gate))
             : rms_norm_step(g, a, head_gain, o.norm_eps);
  if (o.lepe) add_step(g, mixed, convolution_step(g, v, lepe, o.grid, {3, 3, 3}));
  return dense_step(g, mixed, to_o);
}

}  // namespace detail

/// The layer: layer.hpp documents it.
template <Accumulator A>
using VideoLayer = Layer<detail::VideoFamily<A>>;

}  // namespace MHLA_TARGET
}  // namespace mhla
