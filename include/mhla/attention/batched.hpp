#pragma once

/// \file
/// All forms over batches: strided [B, N, H, D] views, sequences of different lengths, masks.
///
/// Every (sequence, head) of a batch (batch.hpp) is computed by itself and in the same order as
/// alone, so outputs do not depend on what else is in the batch.
///
/// Partitions are given for all sequences alike, or as a function of the length, such as
/// ContiguousBlocks{64}. In the second case a sequence of M blocks uses the leading [M,M] part of
/// the mixing matrix, as the authors' language layer does.
///
/// The executor splits over (sequence, head) pairs, or over the blocks of one pair after another
/// where there are fewer pairs than workers.

#include <span>

#include "mhla/attention/batch.hpp"
#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/linear.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/attention/streaming.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"

namespace mhla::inline MHLA_TARGET {

/// bidirectional() of every sequence and head. `out` is [B, Nq, H, E].
template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, OperatorOn<T> Op,
          Executor X = Sequential>
void bidirectional(const BatchInputs<T>& in, const QueryBlocks& query_blocks,
                   const KeyBlocks& key_blocks, const MixingMatrix<accumulator_t<T>>& mixing,
                   const Op& op, std::type_identity_t<TensorView<T>> out, Workspace workspace = {},
                   X&& executor = {}, Workspace kept = {});
template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, OperatorOn<T> Op,
          Executor X = Sequential>
std::size_t bidirectional_workspace_bytes(const BatchInputs<T>& in, const QueryBlocks& query_blocks,
                                          const KeyBlocks& key_blocks, const Op& op,
                                          const X& executor = {});
template <Scalar T, BlocksOf KeyBlocks, OperatorOn<T> Op>
std::size_t bidirectional_kept_bytes(const BatchInputs<T>& in, const KeyBlocks& key_blocks,
                                     const Op& op);

/// causal() of every sequence and head. `out` is [B, N, H, E].
template <Scalar T, BlocksOf Blocks, CausalOperatorOn<T> Op, Executor X = Sequential>
void causal(const BatchInputs<T>& in, const Blocks& blocks,
            const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
            std::type_identity_t<TensorView<T>> out, Workspace workspace = {}, X&& executor = {},
            Workspace kept = {});
template <Scalar T, BlocksOf Blocks, CausalOperatorOn<T> Op, Executor X = Sequential>
std::size_t causal_workspace_bytes(const BatchInputs<T>& in, const Blocks& blocks, const Op& op,
                                   const X& executor = {});
template <Scalar T, BlocksOf Blocks, CausalOperatorOn<T> Op>
std::size_t causal_kept_bytes(const BatchInputs<T>& in, const Blocks& blocks, const Op& op);

/// linear_bidirectional() and linear_causal() of every sequence and head.
template <Scalar T, CausalOperatorOn<T> Op, Executor X = Sequential>
void linear_bidirectional(const BatchInputs<T>& in, const Op& op,
                          std::type_identity_t<TensorView<T>> out, Workspace workspace = {},
                          X&& executor = {});
template <Scalar T, CausalOperatorOn<T> Op, Executor X = Sequential>
std::size_t linear_bidirectional_workspace_bytes(const BatchInputs<T>& in, const Op& op,
                                                 const X& executor = {});
template <Scalar T, CausalOperatorOn<T> Op, Executor X = Sequential>
void linear_causal(const BatchInputs<T>& in, const Op& op, std::type_identity_t<TensorView<T>> out,
                   Workspace workspace = {}, X&& executor = {});
template <Scalar T, CausalOperatorOn<T> Op, Executor X = Sequential>
std::size_t linear_causal_workspace_bytes(const BatchInputs<T>& in, const Op& op,
                                          const X& executor = {});

/// softmax_bidirectional() and softmax_causal() of every sequence and head.
template <Scalar T, Executor X = Sequential>
void softmax_bidirectional(const BatchInputs<T>& in, std::type_identity_t<TensorView<T>> out,
                           const SoftmaxOptions& options = {}, Workspace workspace = {},
                           X&& executor = {});
template <Scalar T, Executor X = Sequential>
void softmax_causal(const BatchInputs<T>& in, std::type_identity_t<TensorView<T>> out,
                    const SoftmaxOptions& options = {}, Workspace workspace = {},
                    X&& executor = {});
template <Scalar T, Executor X = Sequential>
std::size_t softmax_workspace_bytes(const BatchInputs<T>& in, const X& executor = {});

/// Streaming::append of every sequence and head.
/// \param states  [sequences * H] states, the heads of a sequence side by side
/// \throws as append does, before any state or output has changed.
template <Scalar T, class Op, Executor X = Sequential>
void append(const Streaming<T, Op>& stream, std::span<StreamingState<accumulator_t<T>>> states,
            const BatchInputs<T>& in, std::type_identity_t<TensorView<T>> out,
            Workspace workspace = {}, X&& executor = {});
template <Scalar T, class Op, Executor X = Sequential>
std::size_t append_workspace_bytes(const Streaming<T, Op>& stream, const X& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Throws unless a mixing matrix serves [mq, mk] blocks: exactly those of a fixed partition, or at
/// least as many where sequences differ in length.
template <BlocksOf QueryBlocks, class A>
void expect_batch_mixing(const char* function, const MixingMatrix<A>& mixing, Index mq, Index mk) {
  if constexpr (Partition<QueryBlocks>) {
    expect_mixing(function, mixing, mq, mk);
  } else {
    expect_leading_mixing(function, mixing, mq, mk);
  }
}

}  // namespace detail

template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, OperatorOn<T> Op, Executor X>
std::size_t bidirectional_workspace_bytes(const BatchInputs<T>& in, const QueryBlocks& query_blocks,
                                          const KeyBlocks& key_blocks, const Op& op,
                                          const X& executor) {
  return detail::batch_bytes(
      "bidirectional", in, executor, [&](const Inputs<T>& head, const auto& x) {
        return bidirectional_workspace_bytes(head, detail::blocks_of(query_blocks, head.q.rows),
                                             detail::blocks_of(key_blocks, head.k.rows), op, x);
      });
}

namespace detail {

/// bidirectional() under the name of the function the user called.
template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, class Op, class X>
void batched_bidirectional(const char* function, const BatchInputs<T>& in,
                           const QueryBlocks& query_blocks, const KeyBlocks& key_blocks,
                           const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                           TensorView<T> out, Workspace workspace, X& executor, Workspace kept) {
  check_sequences(function, in, out, [&](const Inputs<T>& head, MatrixView<T> o) {
    const auto queries = blocks_of(query_blocks, head.q.rows);
    const auto keys = blocks_of(key_blocks, head.k.rows);
    expect_bidirectional(function, head, queries, keys, op, o);
    expect_batch_mixing<QueryBlocks>(function, mixing, queries.blocks(), keys.blocks());
  });
  const std::size_t kept_bytes = bidirectional_kept_bytes(in, key_blocks, op);
  expect_kept(function, kept, kept_bytes);
  for_each_pair(
      function, in, out, workspace, executor,
      bidirectional_workspace_bytes(in, query_blocks, key_blocks, op, executor),
      [&](const Inputs<T>& head, MatrixView<T> o, Workspace share, auto& x, Workspace own_kept) {
        run_bidirectional(function, head, blocks_of(query_blocks, head.q.rows),
                          blocks_of(key_blocks, head.k.rows), mixing, op, o, share, x, own_kept);
      },
      kept, kept_bytes);
}

}  // namespace detail

template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, OperatorOn<T> Op, Executor X>
void bidirectional(const BatchInputs<T>& in, const QueryBlocks& query_blocks,
                   const KeyBlocks& key_blocks, const MixingMatrix<accumulator_t<T>>& mixing,
                   const Op& op, std::type_identity_t<TensorView<T>> out, Workspace workspace,
                   X&& executor, Workspace kept) {
  detail::batched_bidirectional("bidirectional", in, query_blocks, key_blocks, mixing, op, out,
                                workspace, executor, kept);
}

template <Scalar T, BlocksOf KeyBlocks, OperatorOn<T> Op>
std::size_t bidirectional_kept_bytes(const BatchInputs<T>& in, const KeyBlocks& key_blocks,
                                     const Op& op) {
  return detail::batch_kept_bytes("bidirectional", in, [&](const Inputs<T>& head) {
    return bidirectional_kept_bytes(head, detail::blocks_of(key_blocks, head.k.rows), op);
  });
}

template <Scalar T, BlocksOf Blocks, CausalOperatorOn<T> Op, Executor X>
std::size_t causal_workspace_bytes(const BatchInputs<T>& in, const Blocks& blocks, const Op& op,
                                   const X& executor) {
  return detail::batch_bytes("causal", in, executor, [&](const Inputs<T>& head, const auto& x) {
    return causal_workspace_bytes(head, detail::blocks_of(blocks, head.q.rows), op, x);
  });
}

template <Scalar T, BlocksOf Blocks, CausalOperatorOn<T> Op, Executor X>
void causal(const BatchInputs<T>& in, const Blocks& blocks,
            const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
            std::type_identity_t<TensorView<T>> out, Workspace workspace, X&& executor,
            Workspace kept) {
  detail::check_sequences("causal", in, out, [&](const Inputs<T>& head, MatrixView<T> o) {
    detail::expect_causal("causal", head, detail::blocks_of(blocks, head.q.rows), mixing, op, o);
  });
  const std::size_t kept_bytes = causal_kept_bytes(in, blocks, op);
  detail::expect_kept("causal", kept, kept_bytes);
  detail::for_each_pair(
      "causal", in, out, workspace, executor, causal_workspace_bytes(in, blocks, op, executor),
      [&](const Inputs<T>& head, MatrixView<T> o, Workspace share, auto& x, Workspace own_kept) {
        detail::run_causal(head, detail::blocks_of(blocks, head.q.rows), mixing, op, o, share, x,
                           own_kept);
      },
      kept, kept_bytes);
}

template <Scalar T, BlocksOf Blocks, CausalOperatorOn<T> Op>
std::size_t causal_kept_bytes(const BatchInputs<T>& in, const Blocks& blocks, const Op& op) {
  return detail::batch_kept_bytes("causal", in, [&](const Inputs<T>& head) {
    return causal_kept_bytes(head, detail::blocks_of(blocks, head.q.rows), op);
  });
}

template <Scalar T, CausalOperatorOn<T> Op, Executor X>
std::size_t linear_bidirectional_workspace_bytes(const BatchInputs<T>& in, const Op& op,
                                                 const X& executor) {
  return bidirectional_workspace_bytes(in, detail::single_block, detail::single_block, op,
                                       executor);
}

template <Scalar T, CausalOperatorOn<T> Op, Executor X>
void linear_bidirectional(const BatchInputs<T>& in, const Op& op,
                          std::type_identity_t<TensorView<T>> out, Workspace workspace,
                          X&& executor) {
  detail::batched_bidirectional("linear_bidirectional", in, detail::single_block,
                                detail::single_block, detail::no_mixing<accumulator_t<T>>(), op,
                                out, workspace, executor, {});
}

template <Scalar T, CausalOperatorOn<T> Op, Executor X>
std::size_t linear_causal_workspace_bytes(const BatchInputs<T>& in, const Op& op,
                                          const X& executor) {
  return detail::batch_bytes(
      "linear_causal", in, executor,
      [&](const Inputs<T>& head, const auto&) { return linear_causal_workspace_bytes(head, op); });
}

template <Scalar T, CausalOperatorOn<T> Op, Executor X>
void linear_causal(const BatchInputs<T>& in, const Op& op, std::type_identity_t<TensorView<T>> out,
                   Workspace workspace, X&& executor) {
  detail::check_sequences("linear_causal", in, out, [&](const Inputs<T>& head, MatrixView<T> o) {
    detail::expect_linear_causal(head, op, o);
  });
  detail::for_each_pair("linear_causal", in, out, workspace, executor,
                        linear_causal_workspace_bytes(in, op, executor),
                        [&](const Inputs<T>& head, MatrixView<T> o, Workspace share, auto&,
                            Workspace) { detail::run_linear_causal(head, op, o, share); });
}

template <Scalar T, Executor X>
std::size_t softmax_workspace_bytes(const BatchInputs<T>& in, const X& executor) {
  return detail::batch_bytes("softmax", in, executor, [&](const Inputs<T>& head, const auto& x) {
    return softmax_workspace_bytes(head, x);
  });
}

namespace detail {

template <Scalar T, class X>
void batched_softmax(const char* function, bool causal, const BatchInputs<T>& in, TensorView<T> out,
                     const SoftmaxOptions& options, Workspace workspace, X& executor) {
  check_sequences(function, in, out, [&](const Inputs<T>& head, MatrixView<T> o) {
    expect_softmax(function, causal, head, o);
  });
  for_each_pair(function, in, out, workspace, executor, softmax_workspace_bytes(in, executor),
                [&](const Inputs<T>& head, MatrixView<T> o, Workspace share, auto& x, Workspace) {
                  run_softmax(function, causal, head, o, options, share, x);
                });
}

}  // namespace detail

template <Scalar T, Executor X>
void softmax_bidirectional(const BatchInputs<T>& in, std::type_identity_t<TensorView<T>> out,
                           const SoftmaxOptions& options, Workspace workspace, X&& executor) {
  detail::batched_softmax("softmax_bidirectional", false, in, out, options, workspace, executor);
}

template <Scalar T, Executor X>
void softmax_causal(const BatchInputs<T>& in, std::type_identity_t<TensorView<T>> out,
                    const SoftmaxOptions& options, Workspace workspace, X&& executor) {
  detail::batched_softmax("softmax_causal", true, in, out, options, workspace, executor);
}

template <Scalar T, class Op, Executor X>
std::size_t append_workspace_bytes(const Streaming<T, Op>& stream, const X& executor) {
  return static_cast<std::size_t>(
      detail::checked_product("append", "workspace",
                              {static_cast<Index>(executor.workers()),
                               static_cast<Index>(stream.append_workspace_bytes())}));
}

template <Scalar T, class Op, Executor X>
void append(const Streaming<T, Op>& stream, std::span<StreamingState<accumulator_t<T>>> states,
            const BatchInputs<T>& in, std::type_identity_t<TensorView<T>> out, Workspace workspace,
            X&& executor) {
  detail::expect_batch("append", in, out);
  const Index heads = in.q.heads(), pairs = detail::sequences(in) * heads;
  if (static_cast<Index>(states.size()) != pairs) {
    detail::fail_shape("append", "states", "has " + std::to_string(states.size()) + " entries",
                       std::to_string(pairs) + " (sequences times heads)");
  }
  for (Index pair = 0; pair < pairs; ++pair) {
    stream.check_append(states[static_cast<std::size_t>(pair)],
                        detail::head_inputs(in, pair / heads, pair % heads),
                        detail::head_output(in, out, pair / heads, pair % heads));
  }
  const detail::Scratch scratch("append", workspace, append_workspace_bytes(stream, executor));
  const std::size_t share = stream.append_workspace_bytes();
  executor.for_each(pairs, [&](Index pair, Index w) {
    stream.append_checked(states[static_cast<std::size_t>(pair)],
                          detail::head_inputs(in, pair / heads, pair % heads),
                          detail::head_output(in, out, pair / heads, pair % heads),
                          scratch.bytes().subspan(static_cast<std::size_t>(w) * share, share));
  });
}

}  // namespace mhla::inline MHLA_TARGET
