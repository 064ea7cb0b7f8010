#pragma once

/// \file
/// Appends to the streams of all sequences and heads of a batch: of Streaming or BlockStreaming.
/// Cost: that of the streams; pairs of a sequence and a head run in parallel.

#include <span>
#include <string>
#include <type_traits>

#include "mhla/attention/batch.hpp"
#include "mhla/attention/heads.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/overlap.hpp"
#include "mhla/attention/streaming_state.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

inline void expect_nothing_kept(const char* function, const Call& call) {
  if (!call.kept.empty()) fail_option(function, "kept", "is set", "none: a stream keeps nothing");
}

/// Throws unless the tensors of an append have the widths of a stream.
/// \param sizes   widths: StreamingSizes or BlockStreamingSizes
/// \param tokens  that an append has, -1 for any number
template <Scalar T, class Op, class Sizes>
void expect_appended(const char* function, const Inputs<T>& in, const Op& op,
                     std::type_identity_t<MatrixView<const T>> out, const Sizes& sizes,
                     Index tokens = -1) {
  expect_inputs(function, in, op, out);
  expect_shape(function, "q", in.q, tokens, sizes.width);
  expect_shape(function, "k", in.k, in.q.rows, sizes.width);
  expect_shape(function, "v", in.v, in.q.rows, sizes.values);
  expect_shape(function, "normalizer_q", in.normalizer_q, -1, sizes.normalizer_width);
  expect_shape(function, "normalizer_k", in.normalizer_k, -1, sizes.normalizer_width);
}

template <class S>
using state_of = StreamingState<accumulator_t<typename S::Element>>;

}  // namespace detail

/// Streaming or BlockStreaming.
template <class S>
concept HeadStream = Scalar<typename S::Element> &&
    requires(const S& stream, detail::state_of<S>& state, const Inputs<typename S::Element>& in,
             MatrixView<typename S::Element> out) {
  stream.check_inputs(in, out);
  stream.check_state(state, Index{1});
  stream.append_checked(state, in, out, Workspace());
};

/// Appends to every sequence and head of a batch.
/// \param states  [sequences * H] states, the heads of a sequence side by side; start(h) of head h
/// \throws as append does, before any state or output has changed.
template <HeadStream S>
void append(const S& stream, std::span<detail::state_of<S>> states,
            const BatchInputs<typename S::Element>& in,
            std::type_identity_t<TensorView<typename S::Element>> out, const Call& call = {});
template <HeadStream S>
std::size_t append_workspace_bytes(const S& stream, const ExecutorRef& executor = {});
/// Throws what append with these arguments would throw.
template <HeadStream S>
void check_append(const S& stream, std::span<const detail::state_of<S>> states,
                  const BatchInputs<typename S::Element>& in,
                  std::type_identity_t<TensorView<typename S::Element>> out, const Call& call = {});

// ------------------------------------------------------------------------------------------------

template <HeadStream S>
std::size_t append_workspace_bytes(const S& stream, const ExecutorRef& executor) {
  return static_cast<std::size_t>(detail::checked_product(
      "append", "workspace",
      {executor.workers(), static_cast<Index>(stream.append_workspace_bytes())}));
}

template <HeadStream S>
void check_append(const S& stream, std::span<const detail::state_of<S>> states,
                  const BatchInputs<typename S::Element>& in,
                  std::type_identity_t<TensorView<typename S::Element>> out, const Call& call) {
  using namespace detail;
  expect_batch("append", in, out, "out");
  expect_nothing_kept("append", call);
  const Index pairs = sequences(in) * heads(in);
  if (static_cast<Index>(states.size()) != pairs) {
    fail_shape("append", "states", "has " + std::to_string(states.size()) + " entries",
               std::to_string(pairs) + " (sequences times heads)");
  }
  for (Index pair = 0; pair < pairs; ++pair) {
    const Index s = pair / heads(in), h = pair % heads(in);
    if (h == 0) stream.check_inputs(head_inputs(in, s, h), head_output(in, out, s, h));
    stream.check_state(states[static_cast<std::size_t>(pair)], query_span(in, s).tokens.length);
  }
  if (stream.heads() > 1) expect_state_heads(states, heads(in));
  expect_separate("append", in, TensorView<const typename S::Element>(out));
  if (call.workspace.empty()) return;
  expect_workspace("append", call.workspace, append_workspace_bytes(stream, call.executor));
}

template <HeadStream S>
void append(const S& stream, std::span<detail::state_of<S>> states,
            const BatchInputs<typename S::Element>& in,
            std::type_identity_t<TensorView<typename S::Element>> out, const Call& call) {
  using namespace detail;
  check_append(stream, std::span<const state_of<S>>(states), in, out, call);
  const Scratch scratch("append", call.workspace, append_workspace_bytes(stream, call.executor));
  const std::size_t share = stream.append_workspace_bytes();
  call.executor.for_each(sequences(in) * heads(in), [&](Index pair, Index w) {
    const Index s = pair / heads(in), h = pair % heads(in);
    stream.append_checked(states[static_cast<std::size_t>(pair)], head_inputs(in, s, h),
                          head_output(in, out, s, h),
                          scratch.bytes().subspan(static_cast<std::size_t>(w) * share, share));
  });
}

}  // namespace MHLA_TARGET
}  // namespace mhla
