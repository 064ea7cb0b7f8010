#pragma once

/// \file
/// MHLA over a sequence on a device where a token reads only itself and what came before: the
/// definition is attention/causal.hpp, the ways to compute it are in launch/plan.cuh.
///
/// Rounding as in bidirectional.cuh. Later blocks never enter an earlier output. (D, E) is one of
/// (64, 64), (72, 72), (128, 128), (128, 256).

#include <cuda_runtime.h>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/launch/device.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/stream.cuh"

namespace mhla::cuda::inline MHLA_CUDA_ARCHS {

/// How causal() with these arguments computes, in how much workspace. The data of the tensors is
/// not read. \throws shape_error, option_error as causal() does.
template <int D, int E, DeviceScalar T>
Plan causal_plan(const Inputs<T>& in, const TokenBlocks& blocks, const Operator& op,
                 std::type_identity_t<TensorView<T>> out, const Device& device) {
  constexpr const char* kName = "cuda::causal";
  return detail::checked_plan<D, E>(
      kName, detail::make_problem<D, E>(kName, in, blocks, blocks, true, op, out), device);
}

/// Puts the computation of `out` [B, N, H, E] into a stream, on the terms of cuda::bidirectional.
/// \param blocks     contiguous(N, W)
/// \param mixing     at least [M, M], rows dense; of the leading part the lower triangle is read
/// \param workspace  at least the plan's workspace_bytes, at a multiple of 256
/// \param device     current_device()
/// \throws shape_error, option_error for what does not fit, before anything is launched; cuda_error
///         if `device` is not the current one's, or CUDA refuses a launch.
template <int D, int E, DeviceScalar T>
void causal(const Inputs<T>& in, const TokenBlocks& blocks, MatrixView<const float> mixing,
            const Operator& op, std::type_identity_t<TensorView<T>> out, Workspace workspace,
            const Device& device, cudaStream_t stream) {
  constexpr const char* kName = "cuda::causal";
  const Problem problem = detail::make_problem<D, E>(kName, in, blocks, blocks, true, op, out);
  detail::expect_data(kName, in, out);
  const MixingArray coefficients = detail::mixing_array(kName, mixing, problem);
  const Plan planned = detail::checked_plan<D, E>(kName, problem, device);
  unsigned char* const begin = detail::workspace_begin(kName, workspace, planned);
  run<kernel_scalar_t<T>, D, E, true>(planned, problem, coefficients, begin, device,
                                      Stream(stream, device.arch));
}

}  // namespace mhla::cuda::inline MHLA_CUDA_ARCHS
