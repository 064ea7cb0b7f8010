#pragma once

/// \file
/// The forms of mhla::cuda for one type and one pair of widths. forms.cu is compiled once for each
/// pair, so that builds run in parallel.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mhla/core/matrix.hpp>
#include <mhla/core/tensor.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/attention/inputs.cuh>
#include <mhla/cuda/attention/mixing_inputs.cuh>
#include <mhla/cuda/attention/rotary_inputs.cuh>
#include <mhla/cuda/launch/problem.cuh>
#include <optional>
#include <span>

namespace mhla_torch {

/// Attention call of a batch, with elements of any type.
struct Call {
  mhla::TensorView<const std::byte> q, k, v;  ///< [B, N, H, D or E]; strides in elements
  mhla::TensorView<std::byte> out;            ///< [B, Nq, H, E]
  mhla::cuda::TokenBlocks query_blocks, key_blocks;
  bool causal;  ///< if true, query_blocks are key_blocks
  mhla::cuda::Operator op;
  mhla::cuda::MixingMatrices<const float> mixing;  ///< [Mq, Mk] each with prefixes, dense rows
  std::optional<mhla::cuda::Rotary> rotary{};      ///< for D that is a multiple of 16
  std::span<const float> gain{};                   ///< [E], or empty
  mhla::TensorView<const std::byte> gate{};        ///< [B, Nq, H, E], or absent
  mhla::BatchMask query_mask{}, key_mask{};        ///< [B, Nq] and [B, Nk], or absent
  /// [S + 1] of packed sequences, or empty; the blocks are those of the longest sequence
  std::span<const std::int32_t> query_offsets{}, key_offsets{};
  mhla::Index query_prefix = 0, key_prefix = 0;  ///< tokens before the blocks
};

/// Gradient call. Gradients overwrite their tensors.
struct GradientCall {
  Call forward;                               ///< `out` is not read
  mhla::TensorView<const std::byte> dout;     ///< [B, Nq, H, E]
  mhla::TensorView<const std::byte> out;      ///< output of the forward call, or absent
  mhla::TensorView<std::byte> dq, dk, dv;     ///< same shapes as q, k, v
  mhla::cuda::MixingMatrices<float> dmixing;  ///< at least [Mq, Mk] each, or of size 0
  std::span<float> dgain{};                   ///< [E], or empty
  mhla::TensorView<std::byte> dgate{};        ///< [B, Nq, H, E], or absent
};

template <class T, int D, int E>
struct Forms {
  /// Checks a call without calling CUDA, unless run() has taken its layout before. Then run()
  /// checks.
  /// \throws shape_error, option_error for tensors that the form does not support on any device.
  static void check(const Call& call);

  /// Enqueues a call into a stream of a device, which must be the current one. Preparations of a
  /// thread's latest layouts are cached.
  /// \param workspace  returns the given number of bytes of device memory, aligned to 256 bytes
  /// \param stream     a cudaStream_t
  /// \throws shape_error, option_error as check() does; cuda_error
  static void run(const Call& call, int device,
                  const std::function<mhla::Workspace(std::size_t)>& workspace, void* stream);

  /// Form of a call on the current device: "quadratic", "fused" or "three-stage".
  static const char* form(const Call& call, int device);

  /// check() and run() for gradients.
  static void check(const GradientCall& call);
  static void run(const GradientCall& call, int device,
                  const std::function<mhla::Workspace(std::size_t)>& workspace, void* stream);
};

}  // namespace mhla_torch
