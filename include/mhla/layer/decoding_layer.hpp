#pragma once

/// \file
/// A layer of a language model (language_layer.hpp, language_block.hpp): besides whole sequences it
/// runs the next tokens of sequences, from a state of what these have seen.
///
///     auto state = layer.start(2);
///     layer.append(state, prompts, y);    // [2 * length of a prompt, C]
///     layer.append(state, tokens, y1);    // [2, C]: a token of each
///
/// A state is copied as any value. A Decoder is what a layer's append does.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/tensor_file.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// \tparam Decoder  with Body, State and Room, and the functions project, start and append
template <class Decoder>
class DecodingLayer : public Layer<typename Decoder::Body> {
  using Base = Layer<typename Decoder::Body>;

 public:
  using A = typename Base::A;
  using Options = typename Base::Options;
  using State = typename Decoder::State;

  explicit DecodingLayer(const Options& options) : Base(options) {}
  /// The mixing matrix is projected as the authors do before each use.
  template <TensorFile<A> F>
  DecodingLayer(const F& file, std::string_view prefix, const Options& options,
                const std::vector<std::string_view>& recomputed = {})
      : Base(file, prefix, options, recomputed) {
    project();
  }

  /// The authors' constraint: coefficients of the mixing matrix into [1e-5, 1], 0 above the
  /// diagonal. In training, after every step.
  void project() { Decoder::project(this->body(), this->parameters()); }

  /// A state that has seen no token. It has the mixing matrix and packed projections of the layer,
  /// which reads its other parameters anew in every append: where parameters change, begin again.
  /// \throws option_error for a negative batch.
  State start(Index batch = 1) const {
    if (batch < 0) {
      detail::fail_option(Decoder::kStart, "batch", "is " + std::to_string(batch), "at least 0");
    }
    return Decoder::start(this->body(), this->parameters(), batch);
  }

  /// Writes y for the next tokens of each sequence, and moves the state past them.
  /// \param x, y  [B*n, C], n tokens of one sequence after those of another
  /// \param call  workspace: append_workspace_bytes(state, rows, executor); batch: 0 or the state's
  /// \throws shape_error, option_error for anything that does not fit, also for a state of a layer
  ///         with other options and for more tokens than the mixing matrix has blocks for, before
  ///         anything is changed.
  template <LayerInput X>
  void append(State& state, const X& x, const detail::output_t<X>& y,
              const LayerCall& call = {}) const;
  std::size_t append_workspace_bytes(const State& state, Index rows,
                                     const ExecutorRef& executor = {}) const {
    return detail::counted_bytes([&](detail::Arena& arena) {
      return typename Decoder::Room(arena, this->body(), state, rows, executor);
    });
  }
};

// ------------------------------------------------------------------------------------------------

template <class Decoder>
template <LayerInput X>
void DecodingLayer<Decoder>::append(State& state, const X& input, const detail::output_t<X>& y,
                                    const LayerCall& call) const {
  constexpr const char* kAppend = Decoder::kAppend;
  const detail::input_t<X> x(input);
  const Index batch = state.batch();
  if (!Decoder::fits(this->body(), state)) {
    detail::fail_option(kAppend, "state", "was made by a layer with other options",
                        "one made by start()");
  }
  detail::expect_rows(kAppend, "x", x, -1, this->options().channels);
  detail::expect_whole_items(kAppend, "x", x.rows, batch, "the batch of the state");
  detail::expect_rows(kAppend, "y", y, x.rows, x.cols);
  if (call.batch != 0 && call.batch != batch) {
    detail::fail_option(kAppend, "batch", "is " + std::to_string(call.batch),
                        std::to_string(batch) + ", as that of the state");
  }
  if (batch == 0) return;
  const Index n = x.rows / batch;
  if (n > state.capacity() - state.position()) {
    detail::fail_option(
        kAppend, "x",
        "has " + std::to_string(n) + " tokens after " + std::to_string(state.position()),
        "at most " + std::to_string(state.capacity()) + " in all (chunks times their length)");
  }
  detail::Scratch scratch(kAppend, call.workspace,
                          append_workspace_bytes(state, x.rows, call.executor));
  const typename Decoder::Room room(scratch.arena(), this->body(), state, x.rows, call.executor);
  Decoder::append(this->body(), this->parameters(), state, x, y, room, call.executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
