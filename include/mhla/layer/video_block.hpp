#pragma once

/// \file
/// The block of the authors' video models (Wan2.1) around the self-attention of video_layer.hpp. It
/// leaves out the cross-attention, which reads a text. For B videos of N tokens and C channels,
/// with a perceptron of width H:
///
///     m = w + c: shift, scale and gate of self_attn, then of ffn                 w [6C], c [B,6C]
///     x = x + gate * self_attn(norm(x) * (1 + scale) + shift)                            [B*N, C]
///     y = x + gate * ffn(norm(x) * (1 + scale) + shift), ffn with gelu                   [B*N, C]
///
/// norm is layer normalisation without affine parameters. c is the time projection, with the memory
/// layout of [B,6,C]. Between the two lines the whole model adds cross_attn(norm3(x)). The block
/// ignores the parameters of cross_attn and norm3 in the model's files.
///
///     const WanBlock<float> block(file, "blocks.0.", {.attention = {.grid = ..., .layout = ...}});
///     block(x, c, y);
///
/// Parameters have the authors' names: modulation [1,6,C], self_attn. with those of the attention,
/// ffn.0 and ffn.2 with {weight,bias}. Cost: that of the attention and 4*B*N*C*H flops. About 2*H +
/// 3*C numbers per token are kept besides the attention's. Sources: the released models of
/// arXiv:2601.07832; Wan, arXiv:2503.20314.

#include <string_view>

#include "mhla/core/arch.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/block.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/video_layer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a Wan block.
struct WanOptions {
  VideoOptions attention{};  ///< its channels are the block's
  Index channels = 0;        ///< C; 0 for that of a file
  Index hidden = 0;          ///< H; 0 for the 8960 of Wan2.1 with 1.3B parameters
  double norm_eps = 1e-6;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator T>
struct WanFamily {
  using Scalar = T;
  using Options = WanOptions;
  static constexpr const char* kName = "WanBlock";
  static constexpr const char* kOutput = "self_attn.o.weight";
  static constexpr std::string_view kOthers[] = {"norm3.", "cross_attn."};
  static constexpr bool kConditioned = true;

  static WanOptions checked(const WanOptions& o) {
    return checked_block<VideoFamily<T>>(kName, o, [](Index) { return Index{8960}; });
  }
  static Index tokens(const WanOptions& o) { return volume(o.attention.grid); }
  static MHLA_COLD Value build(Graph<T>& g, Value x, const WanOptions& o) {
    const Index c = o.channels;
    const auto m = table_modulation(g, "modulation", {1, 6, c});
    const auto norm = layer_norm_of(g, c, o.norm_eps, "", false);
    x = branch_steps(g, x, m, 0, norm, [&](Value n) {
      return g.below("self_attn.", [&] { return VideoFamily<T>::build(g, n, o.attention); });
    });
    return branch_steps(g, x, m, 1, norm, [&](Value n) {
      const auto first = g.dense("ffn.0", {o.hidden, c}), second = g.dense("ffn.2", {c, o.hidden});
      return mlp_step<Gelu>(g, n, first, second);
    });
  }
};

}  // namespace detail

/// The block: layer.hpp documents it.
template <Accumulator A>
using WanBlock = Layer<detail::WanFamily<A>>;

}  // namespace MHLA_TARGET
}  // namespace mhla
