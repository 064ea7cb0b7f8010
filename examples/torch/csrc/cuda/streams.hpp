#pragma once

/// \file
/// Streams of mhla::cuda for one type and one pair of widths: causal sequences token by token.
/// streams.cu is compiled once for each pair.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mhla/core/matrix.hpp>
#include <mhla/core/tensor.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/launch/problem.cuh>

namespace mhla_torch {

/// Next tokens of sequences of a state, with elements of any type.
struct StreamCall {
  mhla::TensorView<const std::byte> q, k, v;  ///< [n, N, H, D or E]; strides in elements
  mhla::TensorView<std::byte> out;            ///< [n, N, H, E]
  mhla::Index sequences;                      ///< that the state has
  mhla::Index block;                          ///< tokens of a block
  mhla::MatrixView<const float> mixing;       ///< [M, M], or decaying terms [2, R]; dense rows
  mhla::cuda::Operator op;
  mhla::Workspace state;
};

template <class T, int D, int E>
struct Streams {
  /// Enqueues N tokens of the n sequences from `first` on.
  /// \param seen       Tokens that each sequence has seen. With 0 the sequences begin again.
  /// \param workspace  Returns bytes of device memory, aligned to 256 bytes.
  /// \param stream     a cudaStream_t of the current device
  /// \throws shape_error, option_error for arguments that do not fit; cuda_error
  static void prefill(const StreamCall& call, mhla::Index first, mhla::Index seen,
                      const std::function<mhla::Workspace(std::size_t)>& workspace, void* stream);

  /// Enqueues one token of all sequences, or of n sequences.
  /// \param sequence_of  n numbers in device memory, or null
  static void step(const StreamCall& call, const std::int32_t* sequence_of, void* stream);
};

}  // namespace mhla_torch
