#pragma once

/// \file
/// A stage of VLT, an image classifier: blocks one after another, each around the attention of
/// vision_layer.hpp. For B images of N tokens and C channels:
///
///     x = x + convolution(x), depthwise 3 x 3: conditional positional encoding   [B*N, C]
///     x = x + attention(norm1(x)),   x = x + mix(norm2(x))                       [B*N, C]
///
/// norm1 and norm2 are layer normalisation, mix is the residual mix of mix_ffn.hpp.
///
///     const VltOptions options{.attention = {.heads = 1, ...}, .depth = 2};
///     const VltStage<float> stage(file, "layers.0.", options);
///     stage(x, y);
///
/// The authors of MHLA have not released VLT; their paper builds it on RALA. Blocks and names are
/// those of RALA's code: blocks.{i}.{pos,norm1.norm,norm2.norm}.{weight,bias}, and below
/// blocks.{i}.ffn. and attn. those of the mix and of the attention. No code or weights of VLT were
/// available to check this. Its attention may keep parts of RALA: elu + 1, a rotary embedding, a
/// gate of the output. So the caller chooses the options of the attention. A stage has neither
/// RALA's layer scale nor its downsampling, and ignores tensors below downsample.
///
/// Cost: that of the attention and of the mix, and 18*B*N*C flops for the encoding. About 3*C more
/// numbers per token and block are kept.
/// Sources: arXiv:2601.07832, appendix E; Fan et al., arXiv:2411.07635 (RALA).

#include <string>
#include <string_view>

#include "mhla/core/arch.hpp"
#include "mhla/layer/block.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/mix_ffn.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/layer/steps.hpp"
#include "mhla/layer/vision_layer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a VLT stage.
struct VltOptions {
  VisionOptions attention;  ///< its channels are the stage's
  Index depth = 2;          ///< blocks
  Index channels = 0;       ///< C; 0 for that of a file
  Index hidden = 0;         ///< H of the mix; 0 for 3C
  double norm_eps = 1e-6;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator T>
struct VltFamily {
  using Scalar = T;
  using Options = VltOptions;
  static constexpr const char* kName = "VltStage";
  static constexpr const char* kOutput = "blocks.0.attn.to_out.0.weight";
  static constexpr std::string_view kOthers[] = {"downsample."};

  static VltOptions checked(const VltOptions& o) {
    expect_positive(kName, "depth", o.depth);
    return checked_block<VisionFamily<T>>(kName, o, ResidualMix::hidden);
  }
  static Index tokens(const VltOptions& o) { return volume(o.attention.tokens); }
  static MHLA_COLD Value build(Graph<T>& g, Value x, const VltOptions& o) {
    for (Index i = 0; i < o.depth; ++i) {
      x = g.below("blocks." + std::to_string(i) + ".", [&] { return block(g, x, o); });
    }
    return x;
  }

 private:
  static Value block(Graph<T>& g, Value x, const VltOptions& o) {
    const Index c = o.channels;
    const auto w = g.template weights<ConvolutionView>("pos", {c, 1, 3, 3});
    const auto norm1 = layer_norm_of(g, c, o.norm_eps, "norm1.norm", true);
    const auto norm2 = layer_norm_of(g, c, o.norm_eps, "norm2.norm", true);
    const auto places = vision_places(o.attention);
    x = residual_step(g, convolution_step(g, x, w, o.attention.tokens, {3, 3}, places), x);
    x = branch_steps(g, x, {}, 0, norm1, [&](Value n) {
      return g.below("attn.", [&] { return VisionFamily<T>::build(g, n, o.attention); });
    });
    return branch_steps(g, x, {}, 1, norm2, [&](Value n) {
      return g.below("ffn.", [&] { return mix_of_image<ResidualMix>(g, n, o); });
    });
  }
};

}  // namespace detail

/// The stage: layer.hpp documents it.
template <Accumulator A>
using VltStage = Layer<detail::VltFamily<A>>;

}  // namespace MHLA_TARGET
}  // namespace mhla
