#pragma once

/// \file
/// Kernels that process rows of all tokens piece by piece, without shared memory. Each thread has
/// kPasses pieces of 16 bytes.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Base of such a kernel. Its parameters P have `tokens` and `heads`.
template <class P, int D>
struct TokenPieces {
  using Params = P;
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 4;
  static constexpr int kRegisters = 64;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * parts(p);
  }

 protected:
  /// The pair of the thread block.
  static MHLA_DEVICE BatchHead pair(const Params& p) {
    return batch_head(static_cast<std::int32_t>(ptx::ctaid_x() / parts(p)), p.heads);
  }
  /// Calls act(token, piece) for the thread's pieces.
  template <class Act>
  static MHLA_DEVICE void each(const Params& p, const Act& act) {
    const std::uint32_t part = ptx::ctaid_x() % parts(p);
    MHLA_CUDA_UNROLL
    for (std::uint32_t i = 0; i < kPasses; ++i) {
      const std::uint64_t index = (std::uint64_t{part} * kPasses + i) * kThreads + ptx::tid_x();
      const std::uint64_t token = index / kPieces;
      if (token >= static_cast<std::uint64_t>(p.tokens)) break;
      act(static_cast<std::int32_t>(token), static_cast<std::uint32_t>(index % kPieces));
    }
  }

 private:
  static constexpr std::uint32_t kPieces = D / 8;
  static constexpr std::uint32_t kPasses = 4;

  /// Thread blocks per head.
  static MHLA_HOST_DEVICE constexpr unsigned parts(const Params& p) {
    constexpr std::uint64_t kOfBlock = kPasses * kThreads;
    const std::uint64_t pieces = static_cast<std::uint64_t>(p.tokens) * kPieces;
    return static_cast<unsigned>((pieces + kOfBlock - 1) / kOfBlock);
  }
};

}  // namespace mhla::cuda
