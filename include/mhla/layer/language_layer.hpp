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

#include <algorithm>
#include <memory>
#include <span>

#include "mhla/attention/streaming.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/decoding_layer.hpp"
#include "mhla/layer/language_backward.hpp"
#include "mhla/layer/language_body.hpp"
#include "mhla/layer/language_state.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The layer. layer.hpp documents whole sequences, decoding_layer.hpp the next tokens.
template <Accumulator A>
using LanguageLayer = DecodingLayer<detail::LanguageDecoder<A>>;

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator A>
struct LanguageDecoder {
  using Body = LanguageBody<A>;
  using State = LanguageState<A>;
  static constexpr const char* kStart = "LanguageLayer::start";
  static constexpr const char* kAppend = "LanguageLayer::append";

  struct Scratch {
    typename Body::Activations tape;
    Workspace rest;
    Scratch(Arena& arena, const Body& body, const State& state, Index rows,
            const ExecutorRef& executor)
        : tape(arena, body, {rows, 1}),
          rest(take_bytes(
              kAppend, arena,
              std::max(body.convolution_bytes(),
                       mhla::append_workspace_bytes(state.shared_->stream, executor)))) {}
  };

  static void project(const Body& body, std::span<A> parameters) {
    clamp_to_lower_triangle(body.views(parameters).mixing, A(1e-5), A(1));
  }
  static bool fits(const Body& body, const State& state) {
    return state.shared_->options == body.options();
  }
  static State start(const Body& body, std::span<const A> parameters, Index batch) {
    State state(std::make_shared<const LanguageDecoding<A>>(body, body.views(parameters)), batch);
    const LanguageSizes& sizes = body.sizes();
    for (Index group = 0; group < sizes.groups(); ++group) {
      for (Index n = 0; n < batch * sizes.key_heads; ++n) {
        const Index head = group + n % sizes.key_heads * sizes.groups();
        state.heads_.push_back(state.shared_->stream.start(head));
      }
    }
    return state;
  }
  static void append(const Body& body, std::span<const A> parameters, State& state,
                     MatrixView<const A> x, std::span<const Index> offsets, MatrixView<A> y,
                     const Scratch& scratch, const ExecutorRef& executor) {
    const auto& tape = scratch.tape;
    const LanguageDecoding<A>& shared = *state.shared_;
    const PackedLanguage<A>& packed = shared.packed;
    const Call inner{.workspace = scratch.rest, .executor = executor};
    const auto p = body.views(parameters);
    const LanguageTails<A> tails{state.tails_[0], state.tails_[1], state.tails_[2]};
    const auto runs = [&](const auto& f) { for_each_run(state, offsets, f); };
    body.attention_inputs(p, packed.maps, x, tape, runs, tails, &packed, inner);
    const Index groups = body.sizes().groups();
    const std::size_t heads = state.heads_.size() / static_cast<std::size_t>(groups);
    for (Index group = 0; group < groups; ++group) {
      const std::span<StreamingState<A>> states(state.heads_);
      BatchInputs<A> in = body.inputs(tape, group);
      in.query_offsets = in.key_offsets = offsets;
      mhla::append(shared.stream, states.subspan(static_cast<std::size_t>(group) * heads, heads),
                   in, body.outputs(tape.attention, 1, group), inner);
    }
    body.finish(p, x, tape, &packed, inner);
    dense(tape.mixed, packed.o, y, executor);
  }

 private:
  /// Calls f for each run of sequences that have tokens.
  template <class F>
  static void for_each_run(const State& state, std::span<const Index> offsets, const F& f) {
    const auto at = [&](Index b) { return offsets[static_cast<std::size_t>(b)]; };
    for (Index b = 0, end = 0; b < state.batch(); b = end) {
      const Index tokens = at(b + 1) - at(b), position = state.head(0, b).position();
      end = b + 1;
      while (end < state.batch() && at(end + 1) - at(end) == tokens &&
             state.head(0, end).position() == position) {
        ++end;
      }
      if (tokens > 0) f(SequenceRun{b, end - b, at(b), tokens, position});
    }
  }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
