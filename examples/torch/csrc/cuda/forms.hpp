#pragma once

/// \file
/// The forms of mhla::cuda for one type and one pair of widths: forms.cu is compiled once for each,
/// so that builds run side by side.

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <mhla/core/matrix.hpp>
#include <mhla/core/tensor.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/launch/problem.cuh>

namespace mhla_torch {

/// Attention of a batch, its numbers of any type.
struct Call {
  mhla::TensorView<const std::byte> q, k, v;  ///< [B, N, H, D or E]; strides in numbers
  mhla::TensorView<std::byte> out;            ///< [B, Nq, H, E]
  mhla::cuda::TokenBlocks query_blocks, key_blocks;
  bool causal;  ///< query_blocks are key_blocks then
  mhla::cuda::Operator op;
  mhla::MatrixView<const float> mixing;  ///< [Mq, Mk], rows dense
};

/// The gradients of a call: written, not added.
struct GradientCall {
  Call forward;                            ///< `out` is not read
  mhla::TensorView<const std::byte> dout;  ///< [B, Nq, H, E]
  mhla::TensorView<const std::byte> out;   ///< the forward's output, or absent
  mhla::TensorView<std::byte> dq, dk, dv;  ///< as q, k and v
  mhla::MatrixView<float> dmixing;         ///< at least [Mq, Mk], or of no size
};

template <class T, int D, int E>
struct Forms {
  /// Calls CUDA for nothing.
  /// \throws shape_error, option_error for tensors that the form cannot take on any device; of a
  ///         layout that it took before, run() does.
  static void check(const Call& call);

  /// Puts a call into a stream of a device, the current one. What depends on its layout alone is
  /// done once for the latest layouts of a thread.
  /// \param workspace  lends so many bytes of the device's memory, at a multiple of 256
  /// \throws what check() does, and cuda_error
  static void run(const Call& call, int device,
                  const std::function<mhla::Workspace(std::size_t)>& workspace,
                  cudaStream_t stream);

  /// "quadratic", "fused" or "three-stage": how a call would run on the current device.
  static const char* form(const Call& call, int device);

  /// The same as check() and run() of gradients.
  static void check(const GradientCall& call);
  static void run(const GradientCall& call, int device,
                  const std::function<mhla::Workspace(std::size_t)>& workspace,
                  cudaStream_t stream);
};

}  // namespace mhla_torch
