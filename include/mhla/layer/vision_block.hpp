#pragma once

/// \file
/// The blocks of the authors' vision models, around the attention of vision_layer.hpp. For B images
/// of N tokens and C channels, with a perceptron of width H:
///
///     DitBlock:   m = silu(c) Wm^T + bm: shift, scale and gate of attention, then of mlp  [B, 6C]
///                 x = x + gate * attention(norm(x) * (1 + scale) + shift)               [B*N, C]
///                 x = x + gate * mlp(norm(x) * (1 + scale) + shift), mlp with gelu      [B*N, C]
///                 y = x, or convolution(x)                                              [B*N, C]
///     DeitBlock:  x = x + attention(norm1(x)),   y = x + mlp(norm2(x)), with erf_gelu   [B*N, C]
///
/// norm is layer normalisation without affine parameters; norm1 and norm2 have such parameters.
///
///     const DitBlock<float> block(file, "blocks.0.", {.attention = {.heads = 6, ...}});
///     block(x, c, y);                                              // c [B,C]
///     const DeitBlock<float> other(file, "blocks.0.", {.attention = deit_attention({...})});
///     other(x, y);
///
/// Parameters have the authors' names: attn. with those of the attention, mlp.fc1 and mlp.fc2, for
/// DiT adaLN_modulation.1 and dw_conv, for DeiT norm1 and norm2, each with {weight,bias}. Cost:
/// that of the attention, 4*B*N*C*H flops for the perceptron, 12*B*C^2 for m and 18*B*N*C for the
/// convolution. Besides the attention's, 2*H + C numbers per token are kept. DiT keeps 2*H + 3*C,
/// and 2*H + 4*C with its convolution.
/// Sources: Peebles and Xie, arXiv:2212.09748; Touvron et al., arXiv:2012.12877; the released
/// models of arXiv:2601.07832.

#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/block.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/initial.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/steps.hpp"
#include "mhla/layer/vision_layer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The depthwise 3 x 3 convolution after a DiT block. It replaces the block's output, without a
/// residual.
enum class DitConvolution {
  kNone,
  kImage,  ///< over the image, for any token order
  /// Over the rows as if they were in raster order, like the released models. If tokens are in the
  /// order of blocks, a token's neighbours differ from those in the image.
  kReleased
};

/// Options of a DiT block.
struct DitOptions {
  VisionOptions attention;  ///< its channels are the block's
  Index channels = 0;       ///< C; 0 for that of a file
  Index hidden = 0;         ///< H; 0 for 4C
  double norm_eps = 1e-6;
  DitConvolution convolution = DitConvolution::kNone;
};

/// Sets the options of DeiT's attention: norms of q and k, no bias of q, k and v, LePE of 5 x 5.
inline VisionOptions deit_attention(VisionOptions o) {
  o.qk_norm = true;
  o.qkv_bias = false;
  o.lepe = 5;
  return o;
}

/// Options of a DeiT block.
struct DeitOptions {
  VisionOptions attention;  ///< deit_attention({...}); its channels are the block's
  Index channels = 0;       ///< C; 0 for that of a file
  Index hidden = 0;         ///< H; 0 for 4C
  double norm_eps = 1e-6;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

/// The branches of a vision block. Without a modulation its norms are affine. With one, the authors
/// let LePE begin with the identity.
/// \tparam F  activation of the perceptron
template <class F, class T, class Options>
Value vision_branches(Graph<T>& g, Value x, const Options& o, const Modulation& m) {
  const Index c = o.channels;
  const auto norm1 = layer_norm_of(g, c, o.norm_eps, "norm1", m.all.absent());
  const auto norm2 = layer_norm_of(g, c, o.norm_eps, "norm2", m.all.absent());
  const Initial lepe = m.all.absent() ? Initial::uniform() : Initial::identity();
  x = branch_steps(g, x, m, 0, norm1, [&](Value n) {
    return g.below("attn.", [&] { return VisionFamily<T>::build(g, n, o.attention, lepe); });
  });
  return branch_steps(g, x, m, 1, norm2, [&](Value n) {
    const auto first = g.dense("mlp.fc1", {o.hidden, c}),
               second = g.dense("mlp.fc2", {c, o.hidden});
    return mlp_step<F>(g, n, first, second);
  });
}

template <Accumulator T>
struct DitFamily {
  using Scalar = T;
  using Options = DitOptions;
  static constexpr const char* kName = "DitBlock";
  static constexpr const char* kOutput = "attn.to_out.0.weight";
  static constexpr bool kConditioned = true;

  static DitOptions checked(const DitOptions& o) {
    return checked_block<VisionFamily<T>>(kName, o, [](Index c) { return 4 * c; });
  }
  static Index tokens(const DitOptions& o) { return volume(o.attention.tokens); }
  static MHLA_COLD Value build(Graph<T>& g, Value x, const DitOptions& o) {
    const Index c = o.channels;
    const auto m = adaptive_modulation(g, c, "adaLN_modulation.1");
    x = vision_branches<Gelu>(g, x, o, m);
    const bool convolves = o.convolution != DitConvolution::kNone;
    const auto w = g.template weights<ConvolutionView>(
        "dw_conv", {c, 1, 3, 3}, {}, {convolves, "convolution"}, Initial::identity());
    if (!convolves) return x;
    const bool image = o.convolution == DitConvolution::kImage;
    return convolution_step(g, x, w, o.attention.tokens, {3, 3},
                            image ? vision_places(o.attention) : std::vector<Index>());
  }
};

template <Accumulator T>
struct DeitFamily {
  using Scalar = T;
  using Options = DeitOptions;
  static constexpr const char* kName = "DeitBlock";
  static constexpr const char* kOutput = "attn.to_out.0.weight";

  static DeitOptions checked(const DeitOptions& o) {
    return checked_block<VisionFamily<T>>(kName, o, [](Index c) { return 4 * c; });
  }
  static Index tokens(const DeitOptions& o) { return volume(o.attention.tokens); }
  static MHLA_COLD Value build(Graph<T>& g, Value x, const DeitOptions& o) {
    return vision_branches<ErfGelu>(g, x, o, {});
  }
};

}  // namespace detail

/// The blocks: layer.hpp documents them.
template <Accumulator A>
using DitBlock = Layer<detail::DitFamily<A>>;
template <Accumulator A>
using DeitBlock = Layer<detail::DeitFamily<A>>;

}  // namespace MHLA_TARGET
}  // namespace mhla
