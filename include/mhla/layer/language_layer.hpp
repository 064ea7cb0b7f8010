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
/// Keys and values may have fewer heads: query head h reads key head h / (heads of a key head).
///
///     LanguageLayer<float> attention(file, "model.layers.0.attn.", {.heads = 4});
///     attention(x, y, {.batch = 2});                            // whole sequences
///     auto state = attention.start(2);
///     attention.append(state, prompts, y);                      // [2 * length of a prompt, C]
///     attention.append(state, tokens, y1);                      // [2, C]: a token of each
///
/// A state has the rotary position, the last inputs of the convolutions and the summaries: a prompt
/// and then tokens give what the whole sequence gives, to the last bit where a call begins with a
/// block, elsewhere within rounding. Calls: layer.hpp and decoding_layer.hpp. Cost: 2*B*N*C*(2*H*D
/// + 3*H*E) flops for the projections with gate, and that of causal.hpp. Source: arXiv:2601.07832,
/// section 4.2, and the released layers.

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "mhla/attention/streaming.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/decoding_layer.hpp"
#include "mhla/layer/language_backward.hpp"
#include "mhla/layer/language_body.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {
template <Accumulator A>
struct LanguageDecoder;
}  // namespace detail

/// What a batch of sequences has seen, with the mixing matrix, the packed projections and the
/// feature maps that were the layer's when it began. Copies are independent, but share these. Made
/// by LanguageLayer::start.
template <Accumulator A>
class LanguageState {
 public:
  Index batch() const { return batch_; }
  /// Tokens of each sequence so far.
  Index position() const { return position_; }
  /// Most tokens of a sequence.
  Index capacity() const { return stream_.capacity(); }

 private:
  friend detail::LanguageDecoder<A>;
  using Body = detail::LanguageBody<A>;

  LanguageState(const Body& body, const detail::LanguageParameters<const A>& p, Index batch)
      : options_(body.options()),
        batch_(batch),
        packed_(std::make_shared<const detail::PackedLanguage<A>>(body.options(),
                                                                  body.sizes().width, p)),
        stream_({.width = body.features(),
                 .values = body.sizes().values,
                 .block_length = body.options().chunk},
                MixingMatrix<A>(p.mixing), body.op()),
        heads_(static_cast<std::size_t>(batch * body.sizes().heads), stream_.start()) {
    if (!options_.short_convolution) return;
    const detail::LanguageSizes& s = body.sizes();
    const Index rows = batch * (options_.convolution_taps - 1);
    q_tail_ = Matrix<A>::Zero(rows, s.heads * s.width);
    k_tail_ = Matrix<A>::Zero(rows, s.key_heads * s.width);
    v_tail_ = Matrix<A>::Zero(rows, s.key_heads * s.values);
  }

  LanguageOptions options_;
  Index batch_, position_ = 0;
  std::shared_ptr<const detail::PackedLanguage<A>> packed_;
  Streaming<A, typename Body::Op> stream_;
  std::vector<StreamingState<A>> heads_;  // [groups, B, Hk]
  Matrix<A> q_tail_, k_tail_, v_tail_;    // [B*(K-1), channels]
};

/// The layer: layer.hpp says what it does on whole sequences, decoding_layer.hpp on the next
/// tokens.
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

  struct Room {
    typename Body::Activations tape;
    Workspace rest;
    Room(Arena& arena, const Body& body, const State& state, Index rows,
         const ExecutorRef& executor)
        : tape(arena, body, {rows, state.batch()}) {
      Arena counting;
      const typename Body::ForwardRoom forward(counting, body, {rows, state.batch()}, executor);
      rest = take_bytes(
          kAppend, arena,
          std::max(forward.rest.size(), mhla::append_workspace_bytes(state.stream_, executor)));
    }
  };

  static void project(const Body& body, std::span<A> parameters) {
    clamp_to_lower_triangle(body.views(parameters).mixing, A(1e-5), A(1));
  }
  static bool fits(const Body& body, const State& state) {
    return state.options_ == body.options();
  }
  static State start(const Body& body, std::span<const A> parameters, Index batch) {
    return {body, body.views(parameters), batch};
  }
  static void append(const Body& body, std::span<const A> parameters, State& state,
                     MatrixView<const A> x, MatrixView<A> y, const Room& room,
                     const ExecutorRef& executor) {
    const auto& tape = room.tape;
    const Index batch = state.batch();
    const Call inner{.workspace = room.rest, .executor = executor};
    const auto p = body.views(parameters);
    LanguageTails<A> tails;
    if (body.options().short_convolution) tails = {state.q_tail_, state.k_tail_, state.v_tail_};
    body.lead(p, state.packed_->maps, x, tape, state.position_, &tails, state.packed_.get(), inner);
    const Index groups = body.sizes().groups();
    const std::size_t heads = state.heads_.size() / static_cast<std::size_t>(groups);
    for (Index group = 0; group < groups; ++group) {
      const std::span<StreamingState<A>> states(state.heads_);
      mhla::append(state.stream_, states.subspan(static_cast<std::size_t>(group) * heads, heads),
                   body.inputs(tape, group), body.outputs(tape.attention, batch, group), inner);
    }
    body.finish(p, x, tape, state.packed_.get(), inner);
    dense(tape.mixed, state.packed_->o, y, executor);
    state.position_ += x.rows / batch;
  }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
