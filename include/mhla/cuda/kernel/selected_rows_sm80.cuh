#pragma once

/// \file
/// Rows of the tokens that take part, from a tensor of a form to a tensor of the caller:
///
///     y_t = x_t, or phi'(z_t) x_t     [D], rounded to T; 0 for masked tokens
///
/// x and y may be one tensor. Each thread has pieces of 16 bytes. Device memory: x and z once, y
/// once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/selection.cuh"

namespace mhla::cuda {

struct SelectedRowParameters {
  ConstTokenTensor x;  ///< [B, N, H, D]
  TokenTensor y;       ///< [B, N, H, D], or [1, ., H, D] of packed sequences
  ConstTokenTensor z;  ///< like y, or null
  std::int32_t tokens;
  std::int32_t heads;
  FeatureMap map;  ///< of z
  Selection selection;
};

template <class T, int D>
struct SelectedRowsSm80 {
  using Params = SelectedRowParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 4;
  static constexpr int kRegisters = 64;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * parts(p);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const std::uint32_t part = ptx::ctaid_x() % parts(p);
    const BatchHead pair =
        batch_head(static_cast<std::int32_t>(ptx::ctaid_x() / parts(p)), p.heads);
    MHLA_CUDA_UNROLL
    for (std::uint32_t i = 0; i < kPasses; ++i) {
      const std::uint32_t index = (part * kPasses + i) * kThreads + ptx::tid_x();
      const auto token = static_cast<std::int32_t>(index / kPieces);
      const std::uint32_t piece = index % kPieces;
      if (token >= p.tokens) break;
      const SelectedRow at = p.selection.row(pair.batch, token);
      if (at.row < 0) continue;
      ptx::Words4 words{};
      if (p.selection.has(at)) {
        words = ptx::ld_global_v4(p.x.head(pair) + token * p.x.token_stride + 16 * piece);
        if (p.z.data != nullptr) {
          words =
              times_derivative(words, ptx::ld_global_nc_v4(row(p.z, at, pair) + 16 * piece), p.map);
        }
      }
      ptx::st_global_v4(row(p.y, at, pair) + 16 * piece, words);
    }
  }

 private:
  static constexpr std::uint32_t kPieces = D / 8;
  static constexpr std::uint32_t kPasses = 4;

  /// Thread blocks per head.
  static MHLA_HOST_DEVICE constexpr unsigned parts(const Params& p) {
    return (static_cast<unsigned>(p.tokens) * kPieces - 1) / (kPasses * kThreads) + 1;
  }

  template <class Byte>
  static MHLA_DEVICE Byte* row(const BasicTokenTensor<Byte>& tensor, SelectedRow at,
                               BatchHead pair) {
    return tensor.head({at.batch, pair.head}) + at.row * tensor.token_stride;
  }

  static MHLA_DEVICE ptx::Words4 times_derivative(ptx::Words4 x, ptx::Words4 z,
                                                  const FeatureMap& map) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      x.x[i] = ptx::pack<T>(ptx::low<T>(x.x[i]) * derivative(map, ptx::low<T>(z.x[i])),
                            ptx::high<T>(x.x[i]) * derivative(map, ptx::high<T>(z.x[i])));
    }
    return x;
  }
};

}  // namespace mhla::cuda
