#pragma once

/// \file
/// Causal MHLA on a device: a token reads itself and earlier tokens. attention/causal.hpp defines
/// it, and launch/plan.cuh lists the ways to compute it.
///
/// Rounding is that of bidirectional.cuh. Later blocks never enter an earlier output.
/// kernel/widths.cuh lists the pairs (D, E).

#include <cuda_runtime.h>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "mhla/cuda/launch/device.cuh"

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// Plans causal() for these arguments: the form and the workspace. The tensors' data is not read.
/// \throws shape_error, option_error as causal() does.
template <int D, int E, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
Plan causal_plan(const Inputs<T>& in, const TokenBlocks& blocks, const O& op,
                 std::type_identity_t<TensorView<T>> out, const Device& device,
                 const R& rotary = {}) {
  return prepare_causal<D, E>(in, blocks, op, out, device, rotary).plan();
}

/// Enqueues the computation of `out` [B, N, H, E] into a stream. Memory and stream are used as in
/// cuda::bidirectional().
/// \param blocks     `contiguous(N, W)`.
/// \param mixing     at least [M, M], dense rows; one, or those that op.matrices says. Only the
///                   lower triangle of the leading [M, M] is read. With op.decay_terms [2, R].
/// \param workspace  At least the plan's workspace_bytes, aligned to 256 bytes.
/// \param device     `current_device()`.
/// \param rotary     NoRotary, or a Rotary for a form without denominators.
/// \throws shape_error, option_error for arguments that do not fit, before any launch; cuda_error
///         if the program has no code of `device` for the current device, or CUDA refuses a launch.
template <int D, int E, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
void causal(const Inputs<T>& in, const TokenBlocks& blocks,
            const MixingMatrices<const float>& mixing, const O& op,
            std::type_identity_t<TensorView<T>> out, Workspace workspace, const Device& device,
            cudaStream_t stream, const R& rotary = {}) {
  prepare_causal<D, E>(in, blocks, op, out, device, rotary)
      .run_prepared(in, mixing, out, workspace, stream);
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
