#pragma once

/// \file
/// Causal form token by token on a device, with a state in device memory. attention/streaming.hpp
/// defines it.
///
/// A step reads the mixture of earlier blocks and the open block's keys and values, and writes one
/// key and one value. It also prepares a part of the next block's mixture, so that all steps take
/// about the same time. The last token of a block makes the block's summary.
/// kernel/streaming_state.cuh has the state's layout and size. Positions are counted on the device,
/// so that a captured step can be replayed. kernel/widths.cuh lists the pairs (D, E).
///
/// With op.decay_terms a stream has no end: its state has one sum per term in place of the
/// summaries of all blocks.

#include <cuda_runtime.h>

#include "mhla/cuda/attention/fitting_plan.cuh"
#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/attention/streaming_inputs.cuh"
#include "mhla/cuda/kernel/streaming_slice.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/kernel/streaming_step_sm80.cuh"
#include "mhla/cuda/launch/device.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/prefill.cuh"
#include "mhla/cuda/launch/stream.cuh"

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// A causal operator for streams of sequences with H heads. Each sequence has its own position.
/// \tparam O  Operator or MappedOperator
template <int D, int E, DeviceScalar T, AnyOperator O = Operator>
class Streaming {
  static_assert(detail::has_stream_kernels<T>());

 public:
  /// \param sequences     B, the capacity of a state
  /// \param block_length  W
  /// \param mixing        [M, M] on the device, dense rows, or decaying terms [2, R]; with
  ///                      Matrices::kPerHead one per head. The caller keeps it alive and unchanged.
  /// \throws shape_error, option_error for sizes out of range, kCrossQuery and kPerItemAndHead.
  Streaming(Index sequences, Index heads, Index block_length,
            const MixingMatrices<const float>& mixing, const O& op);

  /// Bytes of device memory of a state, for all sequences.
  std::size_t state_bytes() const { return static_cast<std::size_t>(layout_.bytes); }
  /// Tokens per stream: M * W. Further outputs are NaN, and the state does not change. With
  /// decaying terms as many as an Index counts.
  Index capacity() const {
    return decays() ? std::numeric_limits<Index>::max() : Index{blocks_.tokens()};
  }

  /// Resets all sequences of a state.
  /// \param state  at least state_bytes(), aligned to 256 bytes
  /// \throws option_error for memory that does not fit, cuda_error if CUDA refuses.
  void start(Workspace state, cudaStream_t stream) const;

  /// Resets one sequence of a state, 0 to B - 1.
  /// \throws option_error for memory that does not fit or a sequence out of range, cuda_error if
  ///         CUDA refuses.
  void start(Index sequence, Workspace state, cudaStream_t stream) const;

  /// Plans prefill() for these arguments: the form and the workspace. The tensors' data is not
  /// read.
  /// \throws shape_error, option_error as prefill() does.
  Plan prefill_plan(Index seen, const Inputs<T>& in, TensorView<T> out, const Device& device) const;

  /// Writes the outputs of the next N tokens of n sequences, beginning with sequence `first`, and
  /// advances the state. Steps take the tokens that still fit into the open block, fewer than W.
  /// The causal form in three stages and one more kernel take the others. Later steps stay within
  /// the error bound. They have the same bits as after steps alone if kernels of sm_80 make the
  /// summaries. The function allocates nothing and does not wait, and the stream may be captured.
  /// \param seen       tokens that each of the sequences has seen, not read from the device; 0
  ///                   resets the sequences
  /// \param in         [n, N, H, D] and [n, N, H, E], 1 <= N <= capacity() - seen. With decaying
  ///                   terms N is at most 2^31 - 5 W.
  /// \param out        [n, N, H, E].
  /// \param workspace  At least the plan's workspace_bytes, aligned to 256 bytes.
  /// \param device     `current_device()`.
  /// \throws shape_error, option_error for arguments that do not fit, before any launch; cuda_error
  ///         if the program has no code of `device` for the current device, or CUDA refuses a
  ///         launch.
  void prefill(Index first, Index seen, const Inputs<T>& in, TensorView<T> out, Workspace state,
               Workspace workspace, const Device& device, cudaStream_t stream) const;

  /// Writes the outputs [B, 1, H, E] of the next token of every sequence and advances the state.
  /// The function allocates nothing and does not wait, and the stream may be captured.
  /// \param in  the tokens: [B, 1, H, D] and [B, 1, H, E]
  /// \throws shape_error, option_error for arguments that do not fit, before any launch; cuda_error
  ///         if CUDA refuses the launch.
  void step(const Inputs<T>& in, TensorView<T> out, Workspace state, cudaStream_t stream) const;

  /// Writes the outputs of the next token of n <= B sequences: [n, 1, H, D] and [n, 1, H, E].
  /// \param sequence_of  n numbers on the device, read when the step runs: the sequence of each
  ///                     token, all different. A number out of range, such as -1, makes the output
  ///                     NaN.
  /// \throws shape_error, option_error, cuda_error as the other step() does; option_error if
  ///         sequence_of is null.
  void step(const Inputs<T>& in, const std::int32_t* sequence_of, TensorView<T> out,
            Workspace state, cudaStream_t stream) const;

 private:
  static constexpr const char* kName = "cuda::Streaming";

  bool decays() const { return options_of(op_).decay_terms > 0; }
  /// Tokens seen as kernels count them.
  Index counted(Index seen) const {
    detail::expect_seen(kName, seen, capacity());
    return decays() ? endless_counter<Index>(seen, blocks_.slots()) : seen;
  }
  Problem prefill_problem(Index seen, const Inputs<T>& in, TensorView<T> out) const {
    return detail::prefill_problem<D, E>(kName, in, blocks_, counted(seen), heads_, op_, out);
  }
  unsigned char* memory(Workspace state) const;
  void clear(Index first, Index count, Workspace state, cudaStream_t stream) const;
  Plan planned_prefill(const Problem& problem, Index seen, const Device& device) const {
    const auto before = static_cast<std::int32_t>(counted(seen));
    return detail::fitting(
        kName, cuda::prefill_plan<D, E>(problem, before, blocks_.slots(), device), device);
  }
  StreamingStepParameters parameters(ConstTokenTensor q, ConstTokenTensor k, ConstTokenTensor v,
                                     TokenTensor o, Workspace state) const;
  void run_step(const Inputs<T>& in, Index count, const std::int32_t* sequence_of,
                TensorView<T> out, Workspace state, cudaStream_t stream) const;
  /// Defined here: nvcc's host code of a member template outside of the class does not compile.
  template <class Step>
  void launch_step(const Step& step, std::int32_t pairs, cudaStream_t stream) const {
    using Scalar = kernel_scalar_t<T>;
    LaunchCache cache;
    const Stream kernels(stream, Arch::kSm80, cache);
    detail::with_stream_kernels(options_of(op_), [&]<Precision P, bool kDecays>() {
      kernels.run<StreamingStepSm80<Scalar, D, E, P, Step, kDecays>>(step, pairs);
    });
  }

  Index sequences_;
  Index heads_;
  O op_;
  TokenBlocks blocks_;
  MixingArray mixing_;
  StreamingStateLayout layout_;
};

// ------------------------------------------------------------------------------------------------

template <int D, int E, DeviceScalar T, AnyOperator O>
Streaming<D, E, T, O>::Streaming(Index sequences, Index heads, Index block_length,
                                 const MixingMatrices<const float>& mixing, const O& op)
    : sequences_(sequences), heads_(heads), op_(op) {
  using mhla::detail::checked_product;
  const Operator& options = options_of(op);
  constexpr Index kLimit = std::numeric_limits<std::int32_t>::max();
  const Index pairs = checked_product(kName, "sequences and heads", {sequences, heads});
  detail::expect_stream_operator(kName, options);
  const Index terms = options.decay_terms;
  const Index kept = terms > 0 ? 2 : mixing.rows;  // blocks whose summaries are kept
  blocks_ = detail::stream_blocks(kName, mixing.rows, block_length, options);
  checked_product(kName, "state", {pairs, kept + 2 + terms, D * E * 4});
  checked_product(kName, "state", {pairs, block_length, (D + E) * 2});
  constexpr Index kMostPairs = kLimit / StreamingSlice<D, E>::kSlices;
  if (pairs > kMostPairs) {
    detail::fail_shape(kName, "sequences and heads", "have product " + std::to_string(pairs),
                       "at most " + std::to_string(kMostPairs));
  }
  mixing_ = detail::stream_mixing(kName, mixing, blocks_, options);
  layout_ = streaming_state_layout(pairs, kept, block_length, D, E, options.summaries, terms);
}

template <int D, int E, DeviceScalar T, AnyOperator O>
unsigned char* Streaming<D, E, T, O>::memory(Workspace state) const {
  const auto address = reinterpret_cast<std::uintptr_t>(state.data());
  if (state.size() < state_bytes() || address % 256 != 0) {
    detail::fail_option(kName, "state",
                        "has " + std::to_string(state.size()) + " bytes, " +
                            std::to_string(address % 256) + " after a multiple of 256",
                        "at least " + std::to_string(state_bytes()) + " at a multiple of 256");
  }
  return reinterpret_cast<unsigned char*>(state.data());
}

template <int D, int E, DeviceScalar T, AnyOperator O>
void Streaming<D, E, T, O>::clear(Index first, Index count, Workspace state,
                                  cudaStream_t stream) const {
  const Index each = sequences_ == 0 ? 0 : layout_.position_bytes / sequences_;
  expect_success(cudaMemsetAsync(memory(state) + first * each, 0,
                                 static_cast<std::size_t>(count * each), stream),
                 "cudaMemsetAsync");
}

template <int D, int E, DeviceScalar T, AnyOperator O>
void Streaming<D, E, T, O>::start(Workspace state, cudaStream_t stream) const {
  clear(0, sequences_, state, stream);
}

template <int D, int E, DeviceScalar T, AnyOperator O>
void Streaming<D, E, T, O>::start(Index sequence, Workspace state, cudaStream_t stream) const {
  detail::expect_sequences(kName, sequence, 1, sequences_);
  clear(sequence, 1, state, stream);
}

template <int D, int E, DeviceScalar T, AnyOperator O>
Plan Streaming<D, E, T, O>::prefill_plan(Index seen, const Inputs<T>& in, TensorView<T> out,
                                         const Device& device) const {
  const Problem problem = prefill_problem(seen, in, out);
  return planned_prefill(problem, seen, device);
}

template <int D, int E, DeviceScalar T, AnyOperator O>
void Streaming<D, E, T, O>::prefill(Index first, Index seen, const Inputs<T>& in, TensorView<T> out,
                                    Workspace state, Workspace workspace, const Device& device,
                                    cudaStream_t stream) const {
  const Problem problem = prefill_problem(seen, in, out);
  detail::expect_sequences(kName, first, in.q.batch(), sequences_);
  detail::expect_data(kName, in, out);
  const auto before = static_cast<std::int32_t>(counted(seen));
  const Plan planned = planned_prefill(problem, seen, device);
  unsigned char* const begin = detail::workspace_begin(kName, workspace, planned.workspace_bytes);
  StreamingStepParameters tokens = parameters(problem.q, problem.k, problem.v, problem.o, state);
  tokens.first = static_cast<std::int32_t>(first);
  LaunchCache cache;
  run_prefill<kernel_scalar_t<T>, D, E>(planned, problem, tokens, before, begin, device,
                                        Stream(stream, device.kernels(), cache), op_);
}

template <int D, int E, DeviceScalar T, AnyOperator O>
StreamingStepParameters Streaming<D, E, T, O>::parameters(ConstTokenTensor q, ConstTokenTensor k,
                                                          ConstTokenTensor v, TokenTensor o,
                                                          Workspace state) const {
  const Operator& options = options_of(op_);
  return {.q = q,
          .k = k,
          .v = v,
          .o = o,
          .blocks = blocks_,
          .heads = static_cast<std::int32_t>(heads_),
          .query_map = options.query_map,
          .key_map = options.key_map,
          .normalization = {options.denominator, options.scale, options.eps},
          .mixing = mixing_,
          .state = layout_.at(memory(state)),
          .sequences = static_cast<std::int32_t>(sequences_),
          .sequence_of = nullptr,
          .terms = options.decay_terms};
}

template <int D, int E, DeviceScalar T, AnyOperator O>
void Streaming<D, E, T, O>::step(const Inputs<T>& in, TensorView<T> out, Workspace state,
                                 cudaStream_t stream) const {
  run_step(in, sequences_, nullptr, out, state, stream);
}

template <int D, int E, DeviceScalar T, AnyOperator O>
void Streaming<D, E, T, O>::step(const Inputs<T>& in, const std::int32_t* sequence_of,
                                 TensorView<T> out, Workspace state, cudaStream_t stream) const {
  detail::expect_sequences(kName, 0, in.q.batch(), sequences_);
  if (sequence_of == nullptr) {
    detail::fail_option(kName, "sequence_of", "is null", "a pointer to numbers on the device");
  }
  run_step(in, in.q.batch(), sequence_of, out, state, stream);
}

template <int D, int E, DeviceScalar T, AnyOperator O>
void Streaming<D, E, T, O>::run_step(const Inputs<T>& in, Index count,
                                     const std::int32_t* sequence_of, TensorView<T> out,
                                     Workspace state, cudaStream_t stream) const {
  detail::expect_stream_inputs(kName, in);
  const auto rows = [&](Index width) { return std::array<Index, 4>{count, 1, heads_, width}; };
  StreamingStepParameters token =
      parameters(detail::token_tensor<const unsigned char>(kName, "q", in.q, rows(D)),
                 detail::token_tensor<const unsigned char>(kName, "k", in.k, rows(D)),
                 detail::token_tensor<const unsigned char>(kName, "v", in.v, rows(E)),
                 detail::output_tensor(kName, out, rows(E)), state);
  token.sequence_of = sequence_of;
  detail::expect_data(kName, in, out);
  const auto pairs = static_cast<std::int32_t>(count * heads_);
  if (pairs == 0) return;
  if constexpr (std::is_same_v<O, Operator>) {
    launch_step(token, pairs, stream);
  } else {
    launch_step(MappedStepParameters(token, op_.query_map, op_.key_map), pairs, stream);
  }
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
