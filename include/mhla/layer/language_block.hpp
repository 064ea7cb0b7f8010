#pragma once

/// \file
/// The block of the authors' language models (340M) around the attention of language_layer.hpp, for
/// whole sequences and for decoding. For B sequences of N tokens and C channels, with a gated
/// perceptron of width H:
///
///     x = x + attention(rms_norm(x))                                                [B*N, C]
///     y = x + (silu(n Wg^T) * (n Wu^T)) Wd^T,   n = rms_norm(x)                     [B*N, C]
///
///     LanguageBlock<float> block(file, "model.layers.0.", {.attention = {.heads = 4}});
///     block(x, y, {.batch = 2});
///     auto state = block.start(2);
///     block.append(state, prompts, y);                          // decoding_layer.hpp
///
/// Prompts and then tokens give the outputs of the whole sequence, as precisely as the attention
/// does. Parameters have the authors' names: attn_norm.weight, attn. with those of the attention,
/// mlp_norm.weight, mlp.{gate,up,down}_proj.weight. Cost: that of the attention, and 6*B*N*C*H
/// flops. About 2*H + C numbers per token are kept besides the attention's. Sources: Touvron et
/// al., arXiv:2302.13971; the released models of arXiv:2601.07832.

#include "mhla/core/arch.hpp"
#include "mhla/layer/block.hpp"
#include "mhla/layer/decoding_layer.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/initial.hpp"
#include "mhla/layer/language_layer.hpp"
#include "mhla/layer/language_parameters.hpp"
#include "mhla/layer/steps.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a language block.
struct LanguageBlockOptions {
  LanguageOptions attention{};  ///< its channels and norm_eps are the block's
  Index channels = 0;           ///< C; 0 for that of a file
  Index hidden = 0;             ///< H; 0 for 8C/3, rounded up to a multiple of 256
  double norm_eps = 1e-6;       ///< of all three norms

  bool operator==(const LanguageBlockOptions&) const = default;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator T>
struct LanguageBlockFamily {
  using Scalar = T;
  using Options = LanguageBlockOptions;
  using Attention = LanguageFamily<T>;
  static constexpr const char* kName = "LanguageBlock";
  static constexpr const char* kStart = "LanguageBlock::start";
  static constexpr const char* kAppend = "LanguageBlock::append";
  static constexpr const char* kOutput = "attn.o_proj.weight";
  static constexpr const char* kAttention = "attn.";

  static LanguageBlockOptions checked(LanguageBlockOptions o) {
    o.attention.norm_eps = o.norm_eps;
    return checked_block<Attention>(kName, o, [](Index c) { return round_up(c * 8 / 3, 256); });
  }
  static Index tokens(const LanguageBlockOptions&) { return 0; }
  static Index most_tokens(const LanguageBlockOptions& o) {
    return Attention::most_tokens(o.attention);
  }
  static const LanguageOptions& language(const LanguageBlockOptions& o) { return o.attention; }
  static MHLA_COLD Value build(Graph<T>& g, Value x, const LanguageBlockOptions& o) {
    const Index c = o.channels;
    const auto norm = [&](const char* name) {
      return [=, &g, gain = g.tensor(name, {c}, Initial::ones())](Value from) {
        return rms_norm_step(g, from, gain, o.norm_eps);
      };
    };
    const auto norm1 = norm("attn_norm.weight"), norm2 = norm("mlp_norm.weight");
    x = branch_steps(g, x, {}, 0, norm1, [&](Value n) {
      return g.below(kAttention, [&] { return Attention::build(g, n, o.attention); });
    });
    return branch_steps(g, x, {}, 1, norm2, [&](Value n) {
      const auto gate = g.dense("mlp.gate_proj", {o.hidden, c}, false);
      const auto up = g.dense("mlp.up_proj", {o.hidden, c}, false);
      return gated_mlp_step(g, n, {gate, up, g.dense("mlp.down_proj", {c, o.hidden}, false)});
    });
  }
};

}  // namespace detail

/// The block. layer.hpp documents whole sequences, decoding_layer.hpp the next tokens.
template <Accumulator A>
using LanguageBlock = DecodingLayer<detail::LanguageBlockFamily<A>>;

}  // namespace MHLA_TARGET
}  // namespace mhla
