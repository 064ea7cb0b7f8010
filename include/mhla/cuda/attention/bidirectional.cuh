#pragma once

/// \file
/// MHLA over a whole sequence on a device, every query reading every block: the definition is
/// attention/bidirectional.hpp, the ways to compute it are in launch/plan.cuh.
///
/// Factors of products (features, summaries, mixtures, weights) are rounded to the type of the
/// tensors, sums are float: cuda/README.md gives the bound. The mixing matrix is float. A value
/// that is not finite spreads to all outputs that its block's summary is multiplied for, also by 0.
/// (D, E) is one of (64, 64), (72, 72), (128, 128), (128, 256).

#include <cuda_runtime.h>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "mhla/cuda/launch/device.cuh"

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// How bidirectional() with these arguments computes, in how much workspace. The data of the
/// tensors is not read. \throws shape_error, option_error as bidirectional() does.
template <int D, int E, DeviceScalar T, class R = NoRotary>
Plan bidirectional_plan(const Inputs<T>& in, const TokenBlocks& query_blocks,
                        const TokenBlocks& key_blocks, const Operator& op,
                        std::type_identity_t<TensorView<T>> out, const Device& device,
                        const R& rotary = {}) {
  return prepare_bidirectional<D, E>(in, query_blocks, key_blocks, op, out, device, rotary).plan();
}

/// Puts the computation of `out` [B, Nq, H, E] into a stream. All memory is the device's, and may
/// be freed or reused after what the stream holds then; `out` must not overlap the inputs.
/// Allocates nothing and waits for nothing; the stream may be captured.
/// \param mixing     [Mq, Mk], rows dense; the same for all sequences and heads
/// \param workspace  at least the plan's workspace_bytes, at a multiple of 256
/// \param device     current_device()
/// \param rotary     a Rotary where features turn (attention/rotary_inputs.cuh)
/// \throws shape_error, option_error for what does not fit, before anything is launched; cuda_error
///         if `device` is not the current one's, or CUDA refuses a launch.
template <int D, int E, DeviceScalar T, class R = NoRotary>
void bidirectional(const Inputs<T>& in, const TokenBlocks& query_blocks,
                   const TokenBlocks& key_blocks, MatrixView<const float> mixing,
                   const Operator& op, std::type_identity_t<TensorView<T>> out, Workspace workspace,
                   const Device& device, cudaStream_t stream, const R& rotary = {}) {
  prepare_bidirectional<D, E>(in, query_blocks, key_blocks, op, out, device, rotary)
      .run(in, mixing, out, workspace, stream, rotary);
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
