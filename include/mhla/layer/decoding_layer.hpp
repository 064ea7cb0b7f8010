#pragma once

/// \file
/// A layer of a language model (language_layer.hpp, language_block.hpp). It runs whole sequences,
/// and the next tokens of sequences from a state of all tokens before.
///
///     auto state = layer.start(2);
///     layer.append(state, prompts, y);             // [2 * length of a prompt, C]
///     layer.append(state, tokens, y1);             // [2, C], one token per sequence
///
/// Prompts of several lengths are packed, like sequences in batch.hpp:
///
///     const std::vector<Index> offsets{0, 5, 12};  // of 5 and 7 tokens
///     layer.append(state, prompts, offsets, y);    // [12, C]
///
/// Every sequence gets the bits that it has alone, with the same calls. A state is a value with
/// functions to save, restore, select and reorder (language_state.hpp).

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/attention/heads.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/tensor_file.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/language_parameters.hpp"
#include "mhla/layer/language_state.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/policy/mixing_constraints.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// \tparam F  family of a layer (layer.hpp) with one language layer below the prefix kAttention, of
///            the options language(options). It has the names kStart and kAppend, of errors.
template <class F>
class DecodingLayer : public Layer<F> {
  using Base = Layer<F>;

 public:
  using A = typename Base::A;
  using Options = typename Base::Options;
  using State = LanguageState<A>;

  explicit DecodingLayer(const Options& options) : Base(options) {}
  /// Projects the mixing matrix as the authors do before each use.
  template <TensorFile<A> File>
  DecodingLayer(const File& file, std::string_view prefix, const Options& options,
                const std::vector<std::string_view>& recomputed = {})
      : Base(file, prefix, options, recomputed) {
    project();
  }

  /// Applies the authors' constraint: clamps coefficients of the mixing matrix to [1e-5, 1], and
  /// sets those above the diagonal to 0. Numbers of a table of offsets become at least 1e-5, so
  /// that coefficients are at most 1. Call it in training after every step.
  void project() {
    const LanguageOptions& o = F::language(this->options());
    const auto mixing =
        this->table().place(std::string(F::kAttention) + detail::language_mixing_name(o));
    if (o.offsets == 0) {
      clamp_to_lower_triangle(detail::mixing_at(mixing, this->parameters(), o.chunks), A(1e-5),
                              A(1));
    } else {
      for (A& f : mixing.numbers(this->parameters())) f = std::max(f, A(1e-5));
    }
  }

  /// Returns a state without tokens. It contains the mixing matrix and packed projections of the
  /// layer. Every append reads the other parameters from the layer. After a change of parameters,
  /// start again.
  /// \throws option_error for a negative batch.
  State start(Index batch = 1) const {
    if (batch < 0) {
      detail::fail_option(F::kStart, "batch", "is " + std::to_string(batch), "at least 0");
    }
    return State(
        std::make_shared<const detail::LanguageDecoding<A>>(
            this->graph(), F::kAttention, F::language(this->options()), this->parameters()),
        batch);
  }

  /// Writes y for the next tokens of each sequence, and moves the state past these tokens.
  /// \param x, y  [B*n, C], n tokens of one sequence after those of another.
  /// \param call  workspace: append_workspace_bytes(state, rows, executor); batch: 0 or the
  ///              state's.
  /// \throws shape_error, option_error for anything that does not fit, before any change. This
  ///         includes a state of a layer with other options, and more tokens than the mixing matrix
  ///         allows.
  template <LayerInput X>
  void append(State& state, const X& x, const detail::output_t<X>& y,
              const LayerCall& call = {}) const {
    const detail::input_t<X> rows(x);
    expect_input(state, rows);
    const Index batch = state.batch();
    detail::expect_whole_items(F::kAppend, "x", rows.rows, batch, "the batch of the state");
    append_rows(state, rows, y, call,
                [&](Index b) { return batch == 0 ? 0 : rows.rows / batch * b; });
  }
  /// Appends tokens of sequences of any lengths, of which some may have no tokens.
  /// \param x, y     [sum of the lengths, C]
  /// \param offsets  [B + 1]: rows offsets[b] up to offsets[b + 1] are of sequence b
  template <LayerInput X>
  void append(State& state, const X& x, std::span<const Index> offsets,
              const detail::output_t<X>& y, const LayerCall& call = {}) const {
    const detail::input_t<X> rows(x);
    expect_input(state, rows);
    if (std::ssize(offsets) != state.batch() + 1) {
      detail::fail_shape(F::kAppend, "offsets",
                         "has " + std::to_string(offsets.size()) + " entries",
                         std::to_string(state.batch() + 1) + ", one more than the state's batch");
    }
    detail::expect_offsets(F::kAppend, "offsets", offsets, rows.rows);
    append_rows(state, rows, y, call,
                [&](Index b) { return offsets[static_cast<std::size_t>(b)]; });
  }
  std::size_t append_workspace_bytes(const State& state, Index rows,
                                     const ExecutorRef& executor = {}) const {
    const detail::Decoding<A> decoding{*state.shared_};
    Pass<A> p = pass(decoding, rows, executor);
    detail::Arena counting;
    take(counting, p, state.batch(), this->graph().scratch_bytes(p));
    return counting.bytes();
  }

 private:
  Pass<A> pass(const detail::Decoding<A>& decoding, Index rows, const ExecutorRef& executor) const {
    Pass<A> p = this->graph().pass({rows, 1}, executor);
    p.decoding = &decoding, p.packed = &decoding.shared.packed;
    return p;
  }
  /// Takes memory of a pass. Returns that of offsets [B+1].
  /// \param bytes  of scratch
  Index* take(detail::Arena& arena, Pass<A>& p, Index batch, std::size_t bytes) const {
    Index* const offsets = arena.take<Index>(F::kAppend, batch + 1);
    p.tape = this->graph().take_tape(arena, p.sizes, false);
    p.scratch = this->graph().take_scratch(arena, p, bytes);
    return offsets;
  }

  void expect_input(const State& state, MatrixView<const A> x) const {
    const auto& shared = *state.shared_;
    if (shared.options != F::language(this->options()) ||
        shared.parameters != this->table().size()) {
      detail::fail_option(F::kAppend, "state", "was made by a layer with other options",
                          "one made by start()");
    }
    detail::expect_rows(F::kAppend, "x", x, -1, this->options().channels);
  }
  /// \param offset  offset(b) is the first row of sequence b
  template <class Offset>
  void append_rows(State& state, MatrixView<const A> x, MatrixView<A> y, const LayerCall& call,
                   const Offset& offset) const;
};

// ------------------------------------------------------------------------------------------------

template <class F>
template <class Offset>
void DecodingLayer<F>::append_rows(State& state, MatrixView<const A> x, MatrixView<A> y,
                                   const LayerCall& call, const Offset& offset) const {
  constexpr const char* kAppend = F::kAppend;
  const Index batch = state.batch();
  detail::expect_rows(kAppend, "y", y, x.rows, x.cols);
  if (call.batch != 0 && call.batch != batch) {
    detail::fail_option(kAppend, "batch", "is " + std::to_string(call.batch),
                        std::to_string(batch) + ", as that of the state");
  }
  for (Index b = 0; b < batch; ++b) {
    const Index n = offset(b + 1) - offset(b), seen = state.position(b);
    if (n > state.capacity() - seen) {
      detail::fail_option(
          kAppend, "x",
          "has " + std::to_string(n) + " tokens of sequence " + std::to_string(b) + " after " +
              std::to_string(seen),
          "at most " + std::to_string(state.capacity()) + " in all (chunks times their length)");
    }
  }
  if (batch == 0) return;
  detail::Decoding<A> decoding{
      *state.shared_, state.heads_, {state.tails_[0], state.tails_[1], state.tails_[2]}};
  Pass<A> p = pass(decoding, x.rows, call.executor);
  const std::size_t bytes = this->graph().scratch_bytes(p);
  detail::Arena counting;
  take(counting, p, batch, bytes);
  detail::Scratch scratch(kAppend, call.workspace, counting.bytes());
  Index* const offsets = take(scratch.arena(), p, batch, bytes);
  for (Index b = 0; b <= batch; ++b) offsets[b] = offset(b);
  decoding.offsets = {offsets, static_cast<std::size_t>(batch + 1)};
  p.parameters = this->parameters(), p.x = x, p.y = y;
  this->graph().forward(p);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
