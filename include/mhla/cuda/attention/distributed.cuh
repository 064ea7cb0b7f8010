#pragma once

/// \file
/// MHLA over a sequence that several devices hold: each rank has tokens of its own, in whole
/// blocks, and computes their outputs. The blocks of the sequence are those of the ranks one after
/// another; a grid is split along its first axis. Queries and keys of cross-attention have splits
/// of their own.
///
///     mhla::distributed::NcclRank gpu(comm, stream);
///     auto call = prepare_distributed<64, 64>(gpu, in, blocks, blocks, op, out, device);
///     ... call.plan().workspace_bytes of device memory ...
///     call.run(in, mixing, out, workspace);               // each time
///     gpu.synchronize();
///
/// Only summaries travel: received_bytes() a run, whatever the blocks' lengths; in the causal form
/// those of earlier ranks alone. Outputs have the bits of the three-stage form on one device, for
/// any number of ranks and any split: so ranks compare their devices, too. The form is described in
/// launch/share.cuh.

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "mhla/cuda/attention/share_inputs.cuh"
#include "mhla/cuda/launch/share.cuh"
#include "mhla/cuda/launch/stream.cuh"
#include "mhla/distributed/communicator.hpp"
#include "mhla/policy/pattern.hpp"

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// Ranks whose transfers are of device memory, and in the order of a stream.
template <class C>
concept DeviceCommunicator = distributed::Communicator<C> && requires(const C& c) {
  { c.stream() } -> std::same_as<cudaStream_t>;
};

/// A form over ranks. All ranks make it, and its runs, in the same order.
template <int D, int E, bool kCausal, DeviceScalar T, DeviceCommunicator Ranks>
class DistributedCall {
 public:
  /// As prepare_distributed() and prepare_distributed_causal(). \param ranks  outlives this
  DistributedCall(Ranks& ranks, const Inputs<T>& in, const TokenBlocks& query_blocks,
                  const TokenBlocks& key_blocks, const Operator& op, TensorView<T> out,
                  const Device& device, const Pattern& pattern)
      : ranks_(&ranks),
        own_(detail::agree_on_share<D, E, kCausal>(ranks, in, query_blocks, key_blocks, op, out,
                                                   device, pattern)),
        device_(device) {}

  const SharePlan& plan() const { return own_.plan; }
  /// What a run receives from other ranks: summaries of their key blocks.
  std::uint64_t received_bytes() const {
    return static_cast<std::uint64_t>(own_.share.route.rows_received()) *
           shared_bytes<D, E>(own_.problem);
  }

  /// Puts the computation of `out` [B, Nq, H, E], the outputs of this rank's queries, into the
  /// stream of the ranks. The host waits for what NCCL waits for (distributed/nccl.hpp); that
  /// another rank does not come its synchronize() says.
  /// \param in, out    of the shapes and strides that it was prepared for, anywhere in memory
  /// \param mixing     [Mq, Mk] of all ranks' blocks, rows dense, 0 where the pattern has nothing;
  ///                   the same on all ranks, which is not compared. The causal form reads the
  ///                   lower triangle of the leading part
  /// \param workspace  at least the plan's workspace_bytes, at a multiple of 256
  /// \throws shape_error, option_error for what does not fit, on this rank alone, before anything
  ///         is launched; cuda_error; communication_error
  void run(const Inputs<T>& in, MatrixView<const float> mixing, TensorView<T> out,
           Workspace workspace) {
    const char* const name = detail::kDistributed<kCausal>;
    const Problem& own = own_.problem;
    const Problem problem = detail::make_problem<D, E>(name, in, own.query_blocks, own.key_blocks,
                                                       kCausal, own.op, out);
    detail::expect_data(name, in, out);
    detail::expect_same_layout(name, problem, own);
    const MixingArray coefficients = detail::mixing_array(
        name, mixing, own_.share.query_blocks.back(), own_.share.key_blocks.back(), kCausal);
    unsigned char* const begin =
        detail::workspace_begin(name, workspace, own_.plan.workspace_bytes);
    if (problem.pairs() == 0) return;
    run_share<kernel_scalar_t<T>, D, E, kCausal>(
        own_.plan, problem, own_.share, coefficients, begin, device_,
        Stream(ranks_->stream(), device_.kernels(), known_), *ranks_);
    known_.ready = true;
  }

 private:
  Ranks* ranks_;
  detail::PlannedShare own_;
  Device device_;
  Known known_;
};

/// Plans the form where every query reads every block, for tensors of these shapes and strides, of
/// this rank's tokens; their data is not read, and may be null. All ranks compare their arguments.
/// \param query_blocks, key_blocks  of this rank, at least one each; blocks are as long on all
///                                  ranks, but short ones where a grid ends
/// \param op  without a cross-query denominator
/// \param pattern  of the mixing matrix of all ranks: a band, of whose summaries those that a rank
///                 reads travel to it; where it has no rows, all coefficients
/// \param device   of the compute capability of all ranks', as are its kernels' architecture and
///                 the CUDA that made them
/// \throws shape_error, option_error on all ranks if the arguments of one do not fit, or if they
///         differ; communication_error
template <int D, int E, DeviceScalar T, DeviceCommunicator Ranks>
DistributedCall<D, E, false, T, Ranks> prepare_distributed(
    Ranks& ranks, const Inputs<T>& in, const TokenBlocks& query_blocks,
    const TokenBlocks& key_blocks, const Operator& op, std::type_identity_t<TensorView<T>> out,
    const Device& device, const Pattern& pattern = {}) {
  return {ranks, in, query_blocks, key_blocks, op, out, device, pattern};
}

/// The same of the form where a token reads itself and what came before, on earlier ranks too.
/// \param blocks  contiguous(N, W), of this rank's tokens
template <int D, int E, DeviceScalar T, DeviceCommunicator Ranks>
DistributedCall<D, E, true, T, Ranks> prepare_distributed_causal(
    Ranks& ranks, const Inputs<T>& in, const TokenBlocks& blocks, const Operator& op,
    std::type_identity_t<TensorView<T>> out, const Device& device, const Pattern& pattern = {}) {
  return {ranks, in, blocks, blocks, op, out, device, pattern};
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
