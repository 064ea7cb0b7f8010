#pragma once

/// \file
/// The attention layer of the authors' vision models: DiT (image generation) and DeiT (image
/// classification). For B images of N tokens and C channels in H heads of D:
///
///     n       = layer_norm(x)                                                       [B*N, C]
///     q, k, v = n Wqkv^T + b,   q, k = rms_norm(q), rms_norm(k)                     [B*N, C] each
///     heads   = MHLA(relu(q) + eps, relu(k) + eps, v) + convolution(v)              [B*N, C]
///     y       = heads Wo^T + bo                                                     [B*N, C]
///
/// The convolution is LePE, locally enhanced positional encoding: depthwise, over the image. With
/// VisionOptions::softmax, softmax attention of q, k and v replaces MHLA.
/// Parameters have the authors' names: norm.{weight,bias}, to_qkv.{weight,bias},
/// {q,k}_norm.weight, lepe.{weight,bias}, piece_attn.conv.weight and to_out.0.{weight,bias}.
/// Cost: 8*N*C^2 flops for the projections, 4*N*C*D + 2*M^2*C*D for MHLA and 2*N*C*taps for LePE;
/// 5*N*C numbers are kept, 7*N*C with qk_norm, and M*C*(D+1) of summaries. Source:
/// arXiv:2601.07832, section 4.1, and the released layers.

#include <limits>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/layer/block_order.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/initial.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/mixing_tensor.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/layer/steps.hpp"
#include "mhla/policy/by_name.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Order of an image's tokens: raster order, or block after block.
enum class TokenOrder { kRaster, kBlocks };

/// A token order without a default. Options that leave it out do not compile.
class RequiredTokenOrder {
 public:
  constexpr RequiredTokenOrder(TokenOrder order) : order_(order) {}
  template <bool kGiven = false>
  constexpr RequiredTokenOrder() {
    static_assert(kGiven,
                  "mhla: a vision layer needs the order of its tokens: .order = "
                  "mhla::TokenOrder::kRaster for row after row, or .order = "
                  "mhla::TokenOrder::kBlocks for block after block");
  }
  constexpr operator TokenOrder() const { return order_; }

 private:
  TokenOrder order_;
};

/// Options of a vision layer.
struct VisionOptions {
  Index heads = 8;
  GridShape tokens{1};                          ///< of an image
  GridShape block{1};                           ///< of a block
  RequiredTokenOrder order;                     ///< kBlocks in the authors' models
  Index channels = 0;                           ///< C; 0 for that of a file
  bool layer_norm = true;                       ///< the layer's norm before the projection
  bool qk_norm = false;                         ///< of q and k, over all heads together
  bool qkv_bias = true;                         ///< to_qkv has a bias
  Index lepe = 3;                               ///< side of LePE's kernel, odd; 0 for none
  AnyNormalizer normalizer = CrossQuery{1e-6};  ///< the paper's is KeySum{1e-6}
  double feature_eps = 1e-6;
  double layer_norm_eps = 1e-5;
  double qk_norm_eps = 0;        ///< 0 for PyTorch's choice, the epsilon of A
  bool mixing_per_head = false;  ///< the mixing matrix is [H,M,M], one per head
  /// Softmax attention without features, normaliser, blocks and mixing, as a baseline.
  bool softmax = false;
  /// Sizes of a table of coefficients by offset between blocks, such as {3, 3}, in place of the
  /// mixing matrix (distance_mixing.hpp); 0 for none.
  GridShape offsets{0};
};

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Returns the rows of tokens in raster order, or nothing if rows are in raster order.
inline std::vector<Index> vision_places(const VisionOptions& o) {
  if (o.order == TokenOrder::kRaster) return {};
  const std::vector<Index> order = block_order(Grid(o.tokens, o.block));
  std::vector<Index> places(order.size());
  for (std::size_t place = 0; place < order.size(); ++place) {
    places[static_cast<std::size_t>(order[place])] = static_cast<Index>(place);
  }
  return places;
}

template <Accumulator T>
struct VisionFamily {
  using Scalar = T;
  using Options = VisionOptions;
  static constexpr const char* kName = "VisionLayer";
  static constexpr const char* kOutput = "to_out.0.weight";

  static VisionOptions checked(VisionOptions o);
  static Index tokens(const VisionOptions& o) { return volume(o.tokens); }
  static MHLA_COLD Value build(Graph<T>& g, Value x, const VisionOptions& o,
                               const Initial& initial_lepe = Initial::uniform());
};

/// Returns the options after checking that they fit each other.
template <Accumulator T>
VisionOptions VisionFamily<T>::checked(VisionOptions o) {
  expect_grid(kName, "tokens", o.tokens);
  for (int axis = 0; axis < 3; ++axis) {
    if (o.block[axis] < 1 || o.tokens[axis] % o.block[axis] != 0) {
      fail_option(kName, "block", "is " + grid_text(o.block),
                  "one that divides the tokens " + grid_text(o.tokens));
    }
  }
  expect_layer_offsets(kName, o.offsets);
  expect_positive(kName, "heads", o.heads);
  expect_channels(kName, o.channels);
  if (o.channels % o.heads != 0) {
    fail_option(kName, "channels", "is " + std::to_string(o.channels),
                "a multiple of the " + std::to_string(o.heads) + " heads");
  }
  if (o.lepe < 0 || (o.lepe > 0 && o.lepe % 2 == 0)) {
    fail_option(kName, "lepe", "is " + std::to_string(o.lepe), "odd, or 0 for none");
  }
  expect_not_negative(kName, "layer_norm_eps", o.layer_norm_eps);
  expect_not_negative(kName, "qk_norm_eps", o.qk_norm_eps);
  if (o.qk_norm_eps == 0) o.qk_norm_eps = static_cast<double>(std::numeric_limits<T>::epsilon());
  return o;
}

template <Accumulator T>
Value VisionFamily<T>::build(Graph<T>& g, Value x, const VisionOptions& o,
                             const Initial& initial_lepe) {
  const Index c = o.channels;
  const Grid raster(o.tokens, o.block);
  const Initial ones = Initial::ones();
  const auto norm_gain = g.tensor("norm.weight", {c}, ones, {o.layer_norm, "layer_norm"});
  const auto norm_shift =
      g.tensor("norm.bias", {c}, Initial::zeros(), {o.layer_norm, "layer_norm"});
  const auto to_qkv = g.dense("to_qkv", {3 * c, c}, {o.qkv_bias, "qkv_bias"});
  const auto q_gain = g.tensor("q_norm.weight", {c}, ones, {o.qk_norm, "qk_norm"});
  const auto k_gain = g.tensor("k_norm.weight", {c}, ones, {o.qk_norm, "qk_norm"});
  const auto lepe = g.template weights<ConvolutionView>("lepe", {c, 1, o.lepe, o.lepe}, {},
                                                        {o.lepe > 0, "lepe"}, initial_lepe);
  const MixingTensor mixing = mixing_tensor(g, "piece_attn", raster.block_grid(), o.offsets,
                                            o.mixing_per_head ? o.heads : 0, o.softmax);
  const auto to_out = g.dense("to_out.0", {c, c});

  const Value n = o.layer_norm ? layer_norm_step(g, x, norm_gain, norm_shift, o.layer_norm_eps) : x;
  const Value qkv = dense_step(g, n, to_qkv);
  Value q = qkv.part(0, 3), k = qkv.part(1, 3), v = qkv.part(2, 3);
  if (o.qk_norm) {
    q = rms_norm_step(g, q, q_gain, o.qk_norm_eps);
    k = rms_norm_step(g, k, k_gain, o.qk_norm_eps);
  }
  // Blocks of rows: in raster order those of the grid.
  const Grid blocks = o.order == TokenOrder::kRaster
                          ? raster
                          : Grid(GridShape(raster.tokens()), GridShape(raster.block_size(0)));
  const Operator<Relu, Relu, AnyNormalizer> op{{o.feature_eps}, {o.feature_eps}, o.normalizer};
  const Value heads = attention_step(g, {q, k, v}, o.heads, blocks, op, mixing);
  if (o.lepe > 0) {
    const GridShape kernel(o.lepe, o.lepe);
    add_step(g, heads, convolution_step(g, v, lepe, o.tokens, kernel, vision_places(o)));
  }
  return dense_step(g, heads, to_out);
}

}  // namespace detail

/// The layer: layer.hpp documents it.
template <Accumulator A>
using VisionLayer = Layer<detail::VisionFamily<A>>;

}  // namespace MHLA_TARGET
}  // namespace mhla
