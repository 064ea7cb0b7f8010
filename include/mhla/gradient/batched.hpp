#pragma once

/// \file
/// The gradients of all forms over batches: strided [B, N, H, D] views, sequences of different
/// lengths, masks, as in attention/batched.hpp.
///
/// dq, dk and dv of a (sequence, head) pair are those of the pair alone, bit by bit. Gradients of
/// shared parameters are summed over the pairs in an order that depends on their number alone
/// (batch_gradient.hpp). The executor splits over groups of pairs, or over the blocks of one pair
/// after another where there are fewer groups than workers.

#include "mhla/attention/batched.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/gradient/batch_gradient.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/gradient/linear.hpp"
#include "mhla/gradient/softmax.hpp"

namespace mhla::inline MHLA_TARGET {

/// bidirectional_gradient() of every sequence and head. `dout` is [B, Nq, H, E].
template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, DifferentiableOperatorOn<T> Op,
          Executor X = Sequential>
void bidirectional_gradient(const BatchInputs<T>& in, const QueryBlocks& query_blocks,
                            const KeyBlocks& key_blocks,
                            const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                            std::type_identity_t<TensorView<const T>> dout,
                            const BatchGradients<T>& gradients,
                            const ParameterGradients<accumulator_t<T>>& parameters = {},
                            Workspace workspace = {}, X&& executor = {}, Workspace kept = {});
template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, DifferentiableOperatorOn<T> Op,
          Executor X = Sequential>
std::size_t bidirectional_gradient_workspace_bytes(const BatchInputs<T>& in,
                                                   const QueryBlocks& query_blocks,
                                                   const KeyBlocks& key_blocks,
                                                   const MixingMatrix<accumulator_t<T>>& mixing,
                                                   const Op& op, const X& executor = {});

/// causal_gradient() of every sequence and head. `dout` is [B, N, H, E].
template <Scalar T, BlocksOf Blocks, DifferentiableOperatorOn<T> Op, Executor X = Sequential>
requires CausalOperator<Op>
void causal_gradient(const BatchInputs<T>& in, const Blocks& blocks,
                     const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                     std::type_identity_t<TensorView<const T>> dout,
                     const BatchGradients<T>& gradients,
                     const ParameterGradients<accumulator_t<T>>& parameters = {},
                     Workspace workspace = {}, X&& executor = {}, Workspace kept = {});
template <Scalar T, BlocksOf Blocks, DifferentiableOperatorOn<T> Op, Executor X = Sequential>
requires CausalOperator<Op> std::size_t causal_gradient_workspace_bytes(
    const BatchInputs<T>& in, const Blocks& blocks, const MixingMatrix<accumulator_t<T>>& mixing,
    const Op& op, const X& executor = {});

/// linear_bidirectional_gradient() and linear_causal_gradient() of every sequence and head.
template <Scalar T, DifferentiableOperatorOn<T> Op, Executor X = Sequential>
requires CausalOperator<Op>
void linear_bidirectional_gradient(const BatchInputs<T>& in, const Op& op,
                                   std::type_identity_t<TensorView<const T>> dout,
                                   const BatchGradients<T>& gradients,
                                   const ParameterGradients<accumulator_t<T>>& parameters = {},
                                   Workspace workspace = {}, X&& executor = {});
template <Scalar T, DifferentiableOperatorOn<T> Op, Executor X = Sequential>
requires CausalOperator<Op> std::size_t linear_bidirectional_gradient_workspace_bytes(
    const BatchInputs<T>& in, const Op& op, const X& executor = {});
template <Scalar T, DifferentiableOperatorOn<T> Op, Executor X = Sequential>
requires CausalOperator<Op>
void linear_causal_gradient(const BatchInputs<T>& in, const Op& op,
                            std::type_identity_t<TensorView<const T>> dout,
                            const BatchGradients<T>& gradients,
                            const ParameterGradients<accumulator_t<T>>& parameters = {},
                            Workspace workspace = {}, X&& executor = {});
template <Scalar T, DifferentiableOperatorOn<T> Op, Executor X = Sequential>
requires CausalOperator<Op> std::size_t linear_causal_gradient_workspace_bytes(
    const BatchInputs<T>& in, const Op& op, const X& executor = {});

/// softmax_bidirectional_gradient() and softmax_causal_gradient() of every sequence and head.
template <Scalar T, Executor X = Sequential>
void softmax_bidirectional_gradient(const BatchInputs<T>& in,
                                    std::type_identity_t<TensorView<const T>> dout,
                                    const BatchGradients<T>& gradients,
                                    const SoftmaxOptions& options = {}, Workspace workspace = {},
                                    X&& executor = {});
template <Scalar T, Executor X = Sequential>
void softmax_causal_gradient(const BatchInputs<T>& in,
                             std::type_identity_t<TensorView<const T>> dout,
                             const BatchGradients<T>& gradients, const SoftmaxOptions& options = {},
                             Workspace workspace = {}, X&& executor = {});
template <Scalar T, Executor X = Sequential>
std::size_t softmax_gradient_workspace_bytes(const BatchInputs<T>& in, const X& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Runs run(inputs, dout, gradients, sums, workspace, executor, s, h) for every pair of a batch.
/// \param bytes  bytes(head, executor) of workspace of head 0 of a sequence
template <Scalar T, class X, class Bytes, class Run>
void run_batch_gradient(const char* function, const BatchInputs<T>& in,
                        const TensorView<const T>& dout, const BatchGradients<T>& gradients,
                        const ParameterSizes& sizes, const ParameterSums<accumulator_t<T>>& sums,
                        Workspace workspace, X& executor, Bytes&& bytes, Run&& run) {
  using Groups = PairGroups<accumulator_t<T>>;
  Arena counting;
  Groups(function, counting, in, sizes, executor, bytes);
  Scratch scratch(function, workspace, counting.bytes());
  const Groups groups(function, scratch.arena(), in, sizes, executor, bytes);
  groups.run(
      sums, executor,
      [&](Index s, Index h, const ParameterSums<accumulator_t<T>>& own, Workspace share, auto& x) {
        const Inputs<T> head = head_inputs(in, s, h);
        run(head, head_output(in, dout, s, h), head_gradients(in, gradients, s, h), own, share, x,
            s, h);
      });
}

template <Scalar T, class X, class Bytes>
std::size_t batch_gradient_bytes(const char* function, const BatchInputs<T>& in,
                                 const ParameterSizes& sizes, const X& executor, Bytes&& bytes) {
  Arena counting;
  PairGroups<accumulator_t<T>>(function, counting, in, sizes, executor, bytes);
  return counting.bytes();
}

/// Bytes of one head's bidirectional gradient, as a function of the head and the executor.
template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, class Op>
auto bidirectional_gradient_bytes(const QueryBlocks& query_blocks, const KeyBlocks& key_blocks,
                                  const MixingMatrix<accumulator_t<T>>& mixing, const Op& op) {
  return [&](const Inputs<T>& head, const auto& x) {
    return bidirectional_gradient_workspace_bytes(head, blocks_of(query_blocks, head.q.rows),
                                                  blocks_of(key_blocks, head.k.rows), mixing, op,
                                                  x);
  };
}

/// bidirectional_gradient() under the name of the function the user called.
template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, class Op, class X>
void batched_bidirectional_gradient(const char* function, const BatchInputs<T>& in,
                                    const QueryBlocks& query_blocks, const KeyBlocks& key_blocks,
                                    const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                                    const TensorView<const T>& dout,
                                    const BatchGradients<T>& gradients,
                                    const ParameterGradients<accumulator_t<T>>& parameters,
                                    Workspace workspace, X& executor, Workspace kept) {
  check_batch_gradient(function, in, dout, gradients,
                       [&](const Inputs<T>& head, MatrixView<const T> o, const Gradients<T>& g) {
                         const auto queries = blocks_of(query_blocks, head.q.rows);
                         const auto keys = blocks_of(key_blocks, head.k.rows);
                         expect_bidirectional_gradient(function, head, queries, keys, op, o, g);
                         expect_batch_mixing<QueryBlocks>(function, mixing, queries.blocks(),
                                                          keys.blocks());
                       });
  expect_parameters(function, mixing, op, parameters);
  const std::size_t kept_bytes = bidirectional_kept_bytes(in, key_blocks, op);
  expect_kept(function, kept, kept_bytes);
  run_batch_gradient(
      function, in, dout, gradients, parameter_sizes(mixing, op), sums_of(parameters), workspace,
      executor, bidirectional_gradient_bytes<T>(query_blocks, key_blocks, mixing, op),
      [&](const Inputs<T>& head, MatrixView<const T> o, const Gradients<T>& g, const auto& sums,
          Workspace share, auto& x, Index s, Index h) {
        run_bidirectional_gradient(function, head, blocks_of(query_blocks, head.q.rows),
                                   blocks_of(key_blocks, head.k.rows), mixing, op, o, g, sums,
                                   share, x, kept_of_pair(in, kept, kept_bytes, s, h));
      });
}

}  // namespace detail

template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, DifferentiableOperatorOn<T> Op,
          Executor X>
std::size_t bidirectional_gradient_workspace_bytes(const BatchInputs<T>& in,
                                                   const QueryBlocks& query_blocks,
                                                   const KeyBlocks& key_blocks,
                                                   const MixingMatrix<accumulator_t<T>>& mixing,
                                                   const Op& op, const X& executor) {
  return detail::batch_gradient_bytes(
      "bidirectional_gradient", in, detail::parameter_sizes(mixing, op), executor,
      detail::bidirectional_gradient_bytes<T>(query_blocks, key_blocks, mixing, op));
}

template <Scalar T, BlocksOf QueryBlocks, BlocksOf KeyBlocks, DifferentiableOperatorOn<T> Op,
          Executor X>
void bidirectional_gradient(const BatchInputs<T>& in, const QueryBlocks& query_blocks,
                            const KeyBlocks& key_blocks,
                            const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                            std::type_identity_t<TensorView<const T>> dout,
                            const BatchGradients<T>& gradients,
                            const ParameterGradients<accumulator_t<T>>& parameters,
                            Workspace workspace, X&& executor, Workspace kept) {
  detail::batched_bidirectional_gradient("bidirectional_gradient", in, query_blocks, key_blocks,
                                         mixing, op, dout, gradients, parameters, workspace,
                                         executor, kept);
}

namespace detail {

template <Scalar T, BlocksOf Blocks, class Op>
auto causal_gradient_bytes(const Blocks& blocks, const MixingMatrix<accumulator_t<T>>& mixing,
                           const Op& op) {
  return [&](const Inputs<T>& head, const auto& x) {
    return causal_gradient_workspace_bytes(head, blocks_of(blocks, head.q.rows), mixing, op, x);
  };
}

}  // namespace detail

template <Scalar T, BlocksOf Blocks, DifferentiableOperatorOn<T> Op, Executor X>
requires CausalOperator<Op> std::size_t causal_gradient_workspace_bytes(
    const BatchInputs<T>& in, const Blocks& blocks, const MixingMatrix<accumulator_t<T>>& mixing,
    const Op& op, const X& executor) {
  return detail::batch_gradient_bytes("causal_gradient", in, detail::parameter_sizes(mixing, op),
                                      executor,
                                      detail::causal_gradient_bytes<T>(blocks, mixing, op));
}

template <Scalar T, BlocksOf Blocks, DifferentiableOperatorOn<T> Op, Executor X>
requires CausalOperator<Op>
void causal_gradient(const BatchInputs<T>& in, const Blocks& blocks,
                     const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                     std::type_identity_t<TensorView<const T>> dout,
                     const BatchGradients<T>& gradients,
                     const ParameterGradients<accumulator_t<T>>& parameters, Workspace workspace,
                     X&& executor, Workspace kept) {
  constexpr const char* kName = "causal_gradient";
  detail::check_batch_gradient(
      kName, in, dout, gradients,
      [&](const Inputs<T>& head, MatrixView<const T> o, const Gradients<T>& g) {
        detail::expect_causal_gradient(kName, head, detail::blocks_of(blocks, head.q.rows), mixing,
                                       op, o, g);
      });
  detail::expect_parameters(kName, mixing, op, parameters);
  const std::size_t kept_bytes = causal_kept_bytes(in, blocks, op);
  detail::expect_kept(kName, kept, kept_bytes);
  detail::run_batch_gradient(
      kName, in, dout, gradients, detail::parameter_sizes(mixing, op), detail::sums_of(parameters),
      workspace, executor, detail::causal_gradient_bytes<T>(blocks, mixing, op),
      [&](const Inputs<T>& head, MatrixView<const T> o, const Gradients<T>& g, const auto& sums,
          Workspace share, auto& x, Index s, Index h) {
        detail::run_causal_gradient(head, detail::blocks_of(blocks, head.q.rows), mixing, op, o, g,
                                    sums, share, x,
                                    detail::kept_of_pair(in, kept, kept_bytes, s, h));
      });
}

template <Scalar T, DifferentiableOperatorOn<T> Op, Executor X>
requires CausalOperator<Op> std::size_t linear_bidirectional_gradient_workspace_bytes(
    const BatchInputs<T>& in, const Op& op, const X& executor) {
  return bidirectional_gradient_workspace_bytes(in, detail::single_block, detail::single_block,
                                                detail::no_mixing<accumulator_t<T>>(), op,
                                                executor);
}

template <Scalar T, DifferentiableOperatorOn<T> Op, Executor X>
requires CausalOperator<Op>
void linear_bidirectional_gradient(const BatchInputs<T>& in, const Op& op,
                                   std::type_identity_t<TensorView<const T>> dout,
                                   const BatchGradients<T>& gradients,
                                   const ParameterGradients<accumulator_t<T>>& parameters,
                                   Workspace workspace, X&& executor) {
  constexpr const char* kName = "linear_bidirectional_gradient";
  detail::expect_linear_parameters(kName, op, parameters);
  detail::batched_bidirectional_gradient(kName, in, detail::single_block, detail::single_block,
                                         detail::no_mixing<accumulator_t<T>>(), op, dout, gradients,
                                         parameters, workspace, executor, {});
}

namespace detail {

template <Scalar T, class Op>
auto linear_causal_gradient_bytes(const Op& op) {
  return [&](const Inputs<T>& head, const auto&) {
    return linear_causal_gradient_workspace_bytes(head, op);
  };
}

}  // namespace detail

template <Scalar T, DifferentiableOperatorOn<T> Op, Executor X>
requires CausalOperator<Op> std::size_t linear_causal_gradient_workspace_bytes(
    const BatchInputs<T>& in, const Op& op, const X& executor) {
  return detail::batch_gradient_bytes(
      "linear_causal_gradient", in,
      detail::parameter_sizes(detail::no_mixing<accumulator_t<T>>(), op), executor,
      detail::linear_causal_gradient_bytes<T>(op));
}

template <Scalar T, DifferentiableOperatorOn<T> Op, Executor X>
requires CausalOperator<Op>
void linear_causal_gradient(const BatchInputs<T>& in, const Op& op,
                            std::type_identity_t<TensorView<const T>> dout,
                            const BatchGradients<T>& gradients,
                            const ParameterGradients<accumulator_t<T>>& parameters,
                            Workspace workspace, X&& executor) {
  constexpr const char* kName = "linear_causal_gradient";
  detail::check_batch_gradient(
      kName, in, dout, gradients,
      [&](const Inputs<T>& head, MatrixView<const T> o, const Gradients<T>& g) {
        detail::expect_linear_causal_gradient(head, op, o, g);
      });
  detail::expect_linear_parameters(kName, op, parameters);
  detail::run_batch_gradient(
      kName, in, dout, gradients,
      detail::parameter_sizes(detail::no_mixing<accumulator_t<T>>(), op),
      detail::sums_of(parameters), workspace, executor, detail::linear_causal_gradient_bytes<T>(op),
      [&](const Inputs<T>& head, MatrixView<const T> o, const Gradients<T>& g, const auto& sums,
          Workspace share, auto&, Index,
          Index) { detail::run_linear_causal_gradient(head, op, o, g, sums, share); });
}

namespace detail {

inline constexpr auto softmax_gradient_bytes = [](const auto& head, const auto& x) {
  return softmax_gradient_workspace_bytes(head, x);
};

template <Scalar T, class X>
void batched_softmax_gradient(const char* function, bool causal, const BatchInputs<T>& in,
                              const TensorView<const T>& dout, const BatchGradients<T>& gradients,
                              const SoftmaxOptions& options, Workspace workspace, X& executor) {
  check_batch_gradient(function, in, dout, gradients,
                       [&](const Inputs<T>& head, MatrixView<const T> o, const Gradients<T>& g) {
                         expect_softmax_gradient(function, causal, head, o, g);
                       });
  run_batch_gradient(function, in, dout, gradients, {}, {}, workspace, executor,
                     softmax_gradient_bytes,
                     [&](const Inputs<T>& head, MatrixView<const T> o, const Gradients<T>& g,
                         const auto&, Workspace share, auto& x, Index, Index) {
                       run_softmax_gradient(function, causal, head, o, g, options, share, x);
                     });
}

}  // namespace detail

template <Scalar T, Executor X>
std::size_t softmax_gradient_workspace_bytes(const BatchInputs<T>& in, const X& executor) {
  return detail::batch_gradient_bytes("softmax_gradient", in, {}, executor,
                                      detail::softmax_gradient_bytes);
}

template <Scalar T, Executor X>
void softmax_bidirectional_gradient(const BatchInputs<T>& in,
                                    std::type_identity_t<TensorView<const T>> dout,
                                    const BatchGradients<T>& gradients,
                                    const SoftmaxOptions& options, Workspace workspace,
                                    X&& executor) {
  detail::batched_softmax_gradient("softmax_bidirectional_gradient", false, in, dout, gradients,
                                   options, workspace, executor);
}

template <Scalar T, Executor X>
void softmax_causal_gradient(const BatchInputs<T>& in,
                             std::type_identity_t<TensorView<const T>> dout,
                             const BatchGradients<T>& gradients, const SoftmaxOptions& options,
                             Workspace workspace, X&& executor) {
  detail::batched_softmax_gradient("softmax_causal_gradient", true, in, dout, gradients, options,
                                   workspace, executor);
}

}  // namespace mhla::inline MHLA_TARGET
