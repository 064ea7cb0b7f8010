#pragma once

/// \file
/// MHLA over a sequence on a device where a token reads only itself and what came before: the
/// definition is attention/causal.hpp, the ways to compute it are in launch/plan.cuh.
///
/// Rounding as in bidirectional.cuh. Later blocks never enter an earlier output. (D, E) is one of
/// (64, 64), (72, 72), (128, 128), (128, 256).

#include <cuda_runtime.h>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "mhla/cuda/launch/device.cuh"

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// How causal() with these arguments computes, in how much workspace. The data of the tensors is
/// not read. \throws shape_error, option_error as causal() does.
template <int D, int E, DeviceScalar T, class R = NoRotary>
Plan causal_plan(const Inputs<T>& in, const TokenBlocks& blocks, const Operator& op,
                 std::type_identity_t<TensorView<T>> out, const Device& device,
                 const R& rotary = {}) {
  return prepare_causal<D, E>(in, blocks, op, out, device, rotary).plan();
}

/// Puts the computation of `out` [B, N, H, E] into a stream, on the terms of cuda::bidirectional.
/// \param blocks     contiguous(N, W)
/// \param mixing     at least [M, M], rows dense; of the leading part the lower triangle is read
/// \param workspace  at least the plan's workspace_bytes, at a multiple of 256
/// \param device     current_device()
/// \param rotary     a Rotary where features turn, without denominators
/// \throws shape_error, option_error for what does not fit, before anything is launched; cuda_error
///         if `device` is not the current one's, or CUDA refuses a launch.
template <int D, int E, DeviceScalar T, class R = NoRotary>
void causal(const Inputs<T>& in, const TokenBlocks& blocks, MatrixView<const float> mixing,
            const Operator& op, std::type_identity_t<TensorView<T>> out, Workspace workspace,
            const Device& device, cudaStream_t stream, const R& rotary = {}) {
  prepare_causal<D, E>(in, blocks, op, out, device, rotary)
      .run(in, mixing, out, workspace, stream, rotary);
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
