#pragma once

/// \file
/// Bidirectional MHLA on a device: every query reads every block. attention/bidirectional.hpp
/// defines it, and launch/plan.cuh lists the ways to compute it.
///
/// Factors of products (features, summaries, mixtures, weights) are rounded to the tensors' type.
/// Factors of float32 are pairs of bfloat16 (tile/factors.cuh).
/// Sums and the mixing matrix are float. cuda/README.md gives the error bound. A value that is not
/// finite spreads to every output that is computed from its block's summary, even with a
/// coefficient of 0. kernel/widths.cuh lists the pairs (D, E).

#include <cuda_runtime.h>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/attention/prepared.cuh"
#include "mhla/cuda/launch/device.cuh"

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// Plans bidirectional() for these arguments: the form and the workspace. The tensors' data is not
/// read.
/// \throws shape_error, option_error as bidirectional() does.
template <int D, int E, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
Plan bidirectional_plan(const Inputs<T>& in, const TokenBlocks& query_blocks,
                        const TokenBlocks& key_blocks, const O& op,
                        std::type_identity_t<TensorView<T>> out, const Device& device,
                        const R& rotary = {}) {
  return prepare_bidirectional<D, E>(in, query_blocks, key_blocks, op, out, device, rotary).plan();
}

/// Enqueues the computation of `out` [B, Nq, H, E] into a stream. The function allocates nothing
/// and does not wait, and the stream may be captured. All memory is device memory, and may be freed
/// or reused after this work in stream order. `out` must not overlap the inputs.
/// \param mixing     [Mq, Mk], dense rows; one, or those that op.matrices says.
/// \param workspace  At least the plan's workspace_bytes, aligned to 256 bytes.
/// \param device     `current_device()`.
/// \param rotary     A Rotary (attention/rotary_inputs.cuh), or NoRotary.
/// \throws shape_error, option_error for arguments that do not fit, before any launch; cuda_error
///         if the program has no code of `device` for the current device, or CUDA refuses a launch.
template <int D, int E, DeviceScalar T, class R = NoRotary, AnyOperator O = Operator>
void bidirectional(const Inputs<T>& in, const TokenBlocks& query_blocks,
                   const TokenBlocks& key_blocks, const MixingMatrices<const float>& mixing,
                   const O& op, std::type_identity_t<TensorView<T>> out, Workspace workspace,
                   const Device& device, cudaStream_t stream, const R& rotary = {}) {
  prepare_bidirectional<D, E>(in, query_blocks, key_blocks, op, out, device, rotary)
      .run_prepared(in, mixing, out, workspace, stream);
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda
