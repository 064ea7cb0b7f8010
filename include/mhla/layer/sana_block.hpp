#pragma once

/// \file
/// The block of SANA, an image generator, with MHLA in place of its linear attention. It leaves out
/// the cross-attention, which reads a text. For B images of N tokens and C channels:
///
///     m = w + c: shift, scale and gate of attn, then of mlp                      w [6C], c [B,6C]
///     x = x + gate * attn(norm(x) * (1 + scale) + shift)                                 [B*N, C]
///     y = x + gate * mlp(norm(x) * (1 + scale) + shift)                                  [B*N, C]
///
/// norm is layer normalisation without affine parameters, mlp the gated mix of mix_ffn.hpp, attn
/// the layer of vision_layer.hpp. Between the two lines the whole model adds a cross-attention. The
/// block ignores its parameters in the model's files.
///
///     const SanaBlock<float> block(file, "blocks.0.", {.attention = {.heads = 36, ...}});
///     block(x, c, y);
///
/// Parameters: scale_shift_table [6,C], attn. with those of the attention, mlp. with those of the
/// mix. No code or weights of SANA with MHLA are public. Names and sizes outside the attention are
/// SANA's, and the options of its attention are not known. SANA's heads have 32 channels. Cost:
/// that of the attention and of the mix. About 3*C more numbers per token are kept. Sources: Xie et
/// al., arXiv:2410.10629; arXiv:2601.07832.

#include <string_view>

#include "mhla/core/arch.hpp"
#include "mhla/layer/block.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/mix_ffn.hpp"
#include "mhla/layer/vision_layer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a SANA block.
struct SanaOptions {
  VisionOptions attention;  ///< its channels are the block's
  Index channels = 0;       ///< C; 0 for that of a file
  Index hidden = 0;         ///< H of the mix; 0 for 5C/2
  double norm_eps = 1e-6;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator T>
struct SanaFamily {
  using Scalar = T;
  using Options = SanaOptions;
  static constexpr const char* kName = "SanaBlock";
  static constexpr const char* kOutput = "attn.to_out.0.weight";
  static constexpr std::string_view kOthers[] = {"cross_attn."};
  static constexpr bool kConditioned = true;

  static SanaOptions checked(const SanaOptions& o) {
    return checked_block<VisionFamily<T>>(kName, o, GatedMix::hidden);
  }
  static Index tokens(const SanaOptions& o) { return volume(o.attention.tokens); }
  static MHLA_COLD Value build(Graph<T>& g, Value x, const SanaOptions& o) {
    const auto m = table_modulation(g, "scale_shift_table", {6, o.channels});
    const auto norm = layer_norm_of(g, o.channels, o.norm_eps, "", false);
    x = branch_steps(g, x, m, 0, norm, [&](Value n) {
      return g.below("attn.", [&] { return VisionFamily<T>::build(g, n, o.attention); });
    });
    return branch_steps(g, x, m, 1, norm, [&](Value n) {
      return g.below("mlp.", [&] { return mix_of_image<GatedMix>(g, n, o); });
    });
  }
};

}  // namespace detail

/// The block: layer.hpp documents it.
template <Accumulator A>
using SanaBlock = Layer<detail::SanaFamily<A>>;

}  // namespace MHLA_TARGET
}  // namespace mhla
