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
/// and then tokens give what the whole sequence gives, to the last bit where a call ends with a
/// block, elsewhere within rounding. Cost: 2*B*N*C*(2*H*D + 3*H*E) flops for the projections with
/// gate, and that of causal.hpp. Source: arXiv:2601.07832, section 4.2, and the released layers.

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mhla/attention/streaming.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/language_backward.hpp"
#include "mhla/layer/language_body.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// What a batch of sequences has seen, with the mixing matrix and packed projections that were the
/// layer's when it began. Copies are independent, but share these. Made by LanguageLayer::start.
template <Accumulator A>
class LanguageState {
 public:
  Index batch() const { return batch_; }
  /// Tokens of each sequence so far.
  Index position() const { return position_; }
  /// Most tokens of a sequence.
  Index capacity() const { return stream_.capacity(); }

 private:
  template <Accumulator>
  friend class LanguageLayer;
  using Body = detail::LanguageBody<A>;

  LanguageState(const Body& body, const detail::LanguageParameters<const A>& p, Index batch)
      : batch_(batch),
        packed_(std::make_shared<const detail::PackedLanguage<A>>(p)),
        stream_({.width = body.features(),
                 .values = body.sizes().values,
                 .block_length = body.options().chunk},
                MixingMatrix<A>(p.mixing), body.op()),
        heads_(static_cast<std::size_t>(batch * body.sizes().heads), stream_.start()) {
    const LanguageOptions& o = body.options();
    if (!o.short_convolution) return;
    const detail::LanguageSizes& s = body.sizes();
    const Index rows = batch * (o.convolution_taps - 1);
    q_tail_ = Matrix<A>::Zero(rows, s.heads * s.width);
    k_tail_ = Matrix<A>::Zero(rows, s.key_heads * s.width);
    v_tail_ = Matrix<A>::Zero(rows, s.key_heads * s.values);
  }

  Index batch_, position_ = 0;
  std::shared_ptr<const detail::PackedLanguage<A>> packed_;
  Streaming<A, typename Body::Op> stream_;
  std::vector<StreamingState<A>> heads_;  // [groups, B, Hk]
  Matrix<A> q_tail_, k_tail_, v_tail_;    // [B*(K-1), channels]
};

/// The layer: layer.hpp says what it does on whole sequences.
template <Accumulator A>
class LanguageLayer : public Layer<detail::LanguageBody<A>> {
  using Base = Layer<detail::LanguageBody<A>>;
  using Tape = typename detail::LanguageBody<A>::Tape;

 public:
  explicit LanguageLayer(const LanguageOptions& options) : Base(options) {}
  /// The mixing matrix is projected as the authors do before each use.
  template <TensorFile<A> F>
  LanguageLayer(const F& file, std::string_view prefix, const LanguageOptions& options)
      : Base(file, prefix, options) {
    project();
  }

  /// The authors' constraint: coefficients of the mixing matrix into [1e-5, 1], 0 above the
  /// diagonal. In training, after every step.
  void project() {
    clamp_to_lower_triangle(this->body().views(this->parameters()).mixing, A(1e-5), A(1));
  }

  /// A state that has seen no token.
  LanguageState<A> start(Index batch = 1) const {
    if (batch < 0) {
      detail::fail_option("LanguageLayer::start", "batch", "is " + std::to_string(batch),
                          "at least 0");
    }
    return {this->body(), this->body().views(this->parameters()), batch};
  }

  /// Writes y for the next tokens of each sequence, and moves the state past them.
  /// \param x, y  [B*n, C], n tokens of one sequence after those of another
  /// \param call  workspace: append_workspace_bytes(state, rows, executor); batch: 0 or the state's
  /// \throws shape_error, option_error for anything that does not fit, also for more tokens than
  ///         the mixing matrix has blocks for, before anything is changed.
  template <LayerInput X>
  void append(LanguageState<A>& state, const X& x, const detail::output_t<X>& y,
              const LayerCall& call = {}) const;
  std::size_t append_workspace_bytes(const LanguageState<A>& state, Index rows,
                                     const ExecutorRef& executor = {}) const {
    return detail::counted_bytes([&](detail::Arena& arena) {
      return AppendRoom(arena, this->body(), state, rows, executor);
    });
  }

 private:
  static constexpr const char* kAppend = "LanguageLayer::append";

  struct AppendRoom {
    Tape tape;
    Workspace rest;
    AppendRoom(detail::Arena& arena, const detail::LanguageBody<A>& body,
               const LanguageState<A>& state, Index rows, const ExecutorRef& executor)
        : tape(arena, body, {rows, state.batch()}) {
      detail::Arena counting;
      const typename detail::LanguageBody<A>::ForwardRoom forward(counting, body,
                                                                  {rows, state.batch()}, executor);
      rest = detail::take_bytes(
          kAppend, arena,
          std::max(forward.rest.size(), mhla::append_workspace_bytes(state.stream_, executor)));
    }
  };
};

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
template <LayerInput X>
void LanguageLayer<A>::append(LanguageState<A>& state, const X& input, const detail::output_t<X>& y,
                              const LayerCall& call) const {
  const detail::LanguageBody<A>& body = this->body();
  const detail::input_t<X> x(input);
  const Index batch = state.batch();
  detail::expect_rows(kAppend, "x", x, -1, body.options().channels);
  detail::expect_whole_items(kAppend, "x", x.rows, batch, "the batch of the state");
  detail::expect_rows(kAppend, "y", y, x.rows, x.cols);
  if (call.batch != 0 && call.batch != batch) {
    detail::fail_option(kAppend, "batch", "is " + std::to_string(call.batch),
                        std::to_string(batch) + ", as that of the state");
  }
  if (batch == 0) return;
  const Index n = x.rows / batch;
  if (n > state.capacity() - state.position_) {
    detail::fail_option(
        kAppend, "x",
        "has " + std::to_string(n) + " tokens after " + std::to_string(state.position_),
        "at most " + std::to_string(state.capacity()) + " in all (chunks times their length)");
  }
  detail::Scratch scratch(kAppend, call.workspace,
                          append_workspace_bytes(state, x.rows, call.executor));
  const AppendRoom room(scratch.arena(), body, state, x.rows, call.executor);
  const Tape& tape = room.tape;
  const Call inner{.workspace = room.rest, .executor = call.executor};
  const auto p = body.views(this->parameters());
  detail::LanguageTails<A> tails;
  if (body.options().short_convolution) tails = {state.q_tail_, state.k_tail_, state.v_tail_};
  body.lead(p, x, tape, state.position_, &tails, state.packed_.get(), inner);
  const Index groups = body.sizes().groups();
  const std::size_t heads = state.heads_.size() / static_cast<std::size_t>(groups);
  for (Index group = 0; group < groups; ++group) {
    const std::span<StreamingState<A>> states(state.heads_);
    mhla::append(state.stream_, states.subspan(static_cast<std::size_t>(group) * heads, heads),
                 body.inputs(tape, group), body.outputs(tape.attention, batch, group), inner);
  }
  body.finish(p, x, tape, state.packed_.get(), inner);
  dense(tape.mixed, state.packed_->o, y, call.executor);
  state.position_ += n;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
