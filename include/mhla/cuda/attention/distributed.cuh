#pragma once

/// \file
/// MHLA over a sequence that is split over several devices. Each rank has whole blocks of tokens
/// and computes their outputs. The blocks of the sequence are the blocks of rank 0, rank 1 and so
/// on. A grid is split along its first axis. In cross-attention, queries and keys are split
/// independently.
///
///     mhla::distributed::NcclRank gpu(comm, stream);
///     auto call = prepare_distributed<64, 64>(gpu, in, blocks, blocks, op, out, device);
///     ... call.plan().workspace_bytes of device memory ...
///     call.run(in, mixing, out, workspace);               // each time
///     gpu.synchronize();
///
/// Only summaries are sent: received_bytes() per run, independent of the block lengths. The causal
/// form receives summaries of earlier ranks alone. Outputs have the same bits as the three-stage
/// form on one device, for any number of ranks and any split. The ranks therefore compare their
/// devices, too. launch/share.cuh describes the form.

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/make_problem.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "mhla/cuda/attention/share_inputs.cuh"
#include "mhla/cuda/launch/share.cuh"
#include "mhla/cuda/launch/stream.cuh"
#include "mhla/distributed/communicator.hpp"
#include "mhla/policy/pattern.hpp"

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// Ranks that transfer device memory in stream order.
template <class C>
concept DeviceCommunicator = distributed::Communicator<C> && requires(const C& c) {
  { c.stream() } -> std::same_as<cudaStream_t>;
};

/// A prepared form over ranks. All ranks construct it and call run() in the same order.
template <int D, int E, bool kCausal, DeviceScalar T, DeviceCommunicator Ranks>
class DistributedCall {
 public:
  /// Plans as prepare_distributed() and prepare_distributed_causal() do.
  /// \param ranks  must outlive this object
  DistributedCall(Ranks& ranks, const Inputs<T>& in, const TokenBlocks& query_blocks,
                  const TokenBlocks& key_blocks, const Operator& op, TensorView<T> out,
                  const Device& device, const Pattern& pattern)
      : ranks_(&ranks),
        planned_(detail::agree_on_share<D, E, kCausal>(ranks, in, query_blocks, key_blocks, op, out,
                                                       device, pattern)),
        device_(device) {}

  const SharePlan& plan() const { return planned_.plan; }
  /// Bytes that a run receives from other ranks: summaries of their key blocks.
  std::uint64_t received_bytes() const {
    return static_cast<std::uint64_t>(planned_.share.route.rows_received()) *
           shared_bytes<D, E>(planned_.problem);
  }

  /// Enqueues the computation of `out` [B, Nq, H, E] into the ranks' stream. `out` has the outputs
  /// of this rank's queries. The host blocks only where NCCL does (distributed/nccl.hpp). If
  /// another rank fails to call run(), synchronize() reports it.
  /// \param in, out    Shapes and strides of the preparation, at any addresses.
  /// \param mixing     [Mq, Mk] of all ranks' blocks, dense rows, 0 outside the pattern. It must be
  ///                   the same on all ranks, which is not checked. The causal form reads the lower
  ///                   triangle of the leading part.
  /// \param workspace  At least the plan's workspace_bytes, aligned to 256 bytes.
  /// \throws shape_error, option_error for arguments that do not fit, on this rank alone, before
  ///         any launch; cuda_error; communication_error
  void run(const Inputs<T>& in, MatrixView<const float> mixing, TensorView<T> out,
           Workspace workspace) {
    const char* const name = detail::kDistributed<kCausal>;
    const Problem& planned = planned_.problem;
    const Problem problem = detail::make_problem<D, E>(
        name, in, planned.query_blocks, planned.key_blocks, kCausal, planned.op, out);
    detail::expect_data(name, in, out);
    detail::expect_same_layout(name, problem, planned);
    const MixingArray coefficients =
        detail::mixing_array(name, mixing, planned_.share.query_blocks.back(),
                             planned_.share.key_blocks.back(), kCausal);
    unsigned char* const begin =
        detail::workspace_begin(name, workspace, planned_.plan.workspace_bytes);
    if (problem.pairs() == 0) return;
    run_share<kernel_scalar_t<T>, D, E, kCausal>(
        planned_.plan, problem, planned_.share, coefficients, begin, device_,
        Stream(ranks_->stream(), device_.kernels(), cache_), *ranks_);
    cache_.ready = true;
  }

 private:
  Ranks* ranks_;
  detail::PlannedShare planned_;
  Device device_;
  LaunchCache cache_;
};

/// Plans the bidirectional form for this rank's tokens, given their shapes and strides. The
/// tensors' data is not read, and may be null. All ranks compare their arguments.
/// \param query_blocks, key_blocks  of this rank, at least one each; all ranks have the same block
///                                  size, except for short blocks at the end of a grid
/// \param op  without a cross-query denominator
/// \param pattern  of the mixing matrix of all ranks. For a band, a rank receives only the
///                 summaries that its rows read. A pattern without rows means all coefficients
/// \param device   the same on all ranks: compute capability, architecture of the kernels, version
///                 of CUDA that compiled them
/// \throws shape_error, option_error on all ranks if the arguments of one rank do not fit, or if
///         they differ; communication_error
template <int D, int E, DeviceScalar T, DeviceCommunicator Ranks, AnyOperator O = Operator>
DistributedCall<D, E, false, T, Ranks> prepare_distributed(
    Ranks& ranks, const Inputs<T>& in, const TokenBlocks& query_blocks,
    const TokenBlocks& key_blocks, const O& op, std::type_identity_t<TensorView<T>> out,
    const Device& device, const Pattern& pattern = {}) {
  static_assert(std::is_same_v<O, Operator>,
                "ranks compare their operators, so feature maps of one's own are refused");
  return {ranks, in, query_blocks, key_blocks, op, out, device, pattern};
}

/// Plans the causal form over ranks: a token reads itself and earlier tokens, also those of earlier
/// ranks.
/// \param blocks  contiguous(N, W), of this rank's tokens
template <int D, int E, DeviceScalar T, DeviceCommunicator Ranks, AnyOperator O = Operator>
DistributedCall<D, E, true, T, Ranks> prepare_distributed_causal(
    Ranks& ranks, const Inputs<T>& in, const TokenBlocks& blocks, const O& op,
    std::type_identity_t<TensorView<T>> out, const Device& device, const Pattern& pattern = {}) {
  static_assert(std::is_same_v<O, Operator>,
                "ranks compare their operators, so feature maps of one's own are refused");
  return {ranks, in, blocks, blocks, op, out, device, pattern};
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
