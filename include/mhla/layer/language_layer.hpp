#pragma once

/// \file
/// The attention layer of the authors' language models (340M), for whole sequences and for
/// decoding. For B sequences of N tokens and C channels, H heads of D features and E values:
///
///     q, k, v = silu(convolution(x Wq^T)), ...     the causal convolutions are an option
///     q, k    = rotary(phi(q)), rotary(phi(k))     [B*N, H*F], the first D of F features turn
///     a       = causal MHLA(q / sqrt(F), k, v)     [B*N, H*E], no normaliser
///     y       = (rms_norm(a) of every head * silu(x Wg^T)) Wo^T
///
/// Keys and values may have fewer heads. Query head h reads key head h / (query heads per key
/// head).
///
///     LanguageLayer<float> attention(file, "model.layers.0.attn.", {.heads = 4});
///     attention(x, y, {.batch = 2});                            // whole sequences
///     auto state = attention.start(2);
///     attention.append(state, prompts, y);                      // [2 * length of a prompt, C]
///     attention.append(state, tokens, y1);                      // [2, C], one token per sequence
///
/// A state (language_state.hpp) has the rotary positions, the last inputs of the convolutions and
/// the summaries. A prompt and then tokens give the outputs of the whole sequence. Their bits are
/// equal if a call begins with a block, otherwise they agree within rounding.
///
/// Calls: layer.hpp and decoding_layer.hpp. Cost: 2*B*N*C*(2*H*D + 3*H*E) flops for the projections
/// with gate, and the cost of causal.hpp. Source: arXiv:2601.07832, section 4.2, and the released
/// layers.

#include <memory>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/layer/decoding_layer.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/language_parameters.hpp"
#include "mhla/layer/language_steps.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/rotary_table.hpp"
#include "mhla/layer/steps.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

template <Accumulator T>
struct LanguageFamily {
  using Scalar = T;
  using Options = LanguageOptions;
  static constexpr const char* kName = "LanguageLayer";
  static constexpr const char* kStart = "LanguageLayer::start";
  static constexpr const char* kAppend = "LanguageLayer::append";
  static constexpr const char* kOutput = "o_proj.weight";
  static constexpr const char* kAttention = "";

  static LanguageOptions checked(const LanguageOptions& o) { return checked_language_options(o); }
  static Index tokens(const LanguageOptions&) { return 0; }
  static Index most_tokens(const LanguageOptions& o) { return o.chunk * o.chunks; }
  static const LanguageOptions& language(const LanguageOptions& o) { return o; }
  static MHLA_COLD Value build(Graph<T>& g, Value x, const LanguageOptions& o);
};

template <Accumulator T>
Value LanguageFamily<T>::build(Graph<T>& g, Value x, const LanguageOptions& o) {
  const LanguageSizes s(o);
  const LanguageSlices w(g, o);
  const auto angles = std::make_shared<RotaryTable<T>>();
  g.when_prepared([=, most = most_tokens(o)] {
    *angles = RotaryTable<T>::sequence(most, s.width, {.base = o.rotary_base});
  });
  const auto project = [&](const WeightSlices<DenseView>& projection,
                           const WeightSlices<ConvolutionView>& convolution, std::size_t tail) {
    const Value y = dense_step(g, x, projection);
    return o.short_convolution ? short_convolution_step(g, y, convolution, tail) : y;
  };
  const auto rotated = [&](Value y, ParameterSlice weights, std::size_t map, Index heads) {
    y = map_step(g, y, heads, o.feature_map, weights, map);
    return sequence_rotary_step<T>(g, y, angles, heads);
  };
  // The gradient of x is summed in reverse: gate, v, q, k.
  const Value k = rotated(project(w.k, w.k_convolution, 1), w.k_map, 1, s.key_heads);
  const Value q = rotated(project(w.q, w.q_convolution, 0), w.q_map, 0, s.heads);
  const Value v = project(w.v, w.v_convolution, 2);
  const Value a = causal_step(g, q, k, v, o, w.mixing);
  const Value mixed =
      o.gate ? gated_rms_norm_step(g, a, w.head_gain, o.norm_eps, dense_step(g, x, w.gate))
             : rms_norm_step(g, a, w.head_gain, o.norm_eps);
  return dense_step(g, mixed, w.o);
}

}  // namespace detail

/// The layer. layer.hpp documents whole sequences, decoding_layer.hpp the next tokens.
template <Accumulator A>
using LanguageLayer = DecodingLayer<detail::LanguageFamily<A>>;

}  // namespace MHLA_TARGET
}  // namespace mhla
