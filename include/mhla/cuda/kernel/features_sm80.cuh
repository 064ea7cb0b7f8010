#pragma once

/// \file
/// Features of tokens as a tensor: phi(x_t), rounded to T. If there are angles, it rotates
/// (tile/rotary.cuh) and is rounded once more. Tokens that do not take part get rows of zeros.
///
/// Each thread has pieces of 16 bytes. Device memory: x once, features once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/selection.cuh"

namespace mhla::cuda {

struct FeatureParameters {
  ConstTokenTensor x;    ///< [B, N, H, D], or [1, ., H, D] of packed sequences
  TokenTensor features;  ///< [B, N, H, D]
  std::int32_t tokens;
  std::int32_t heads;
  FeatureMap map;
  RotaryAngles angles{};  ///< null: features do not rotate
  Selection selection{};
};

template <class T, int D>
struct FeaturesSm80 {
  using Params = FeatureParameters;
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
    unsigned char* const to = p.features.head(pair);
    MHLA_CUDA_UNROLL
    for (std::uint32_t i = 0; i < kPasses; ++i) {
      const std::uint32_t index = (part * kPasses + i) * kThreads + ptx::tid_x();
      const auto token = static_cast<std::int32_t>(index / kPieces);
      const std::uint32_t piece = index % kPieces;
      if (token >= p.tokens) break;
      const SelectedRow at = p.selection.row(pair.batch, token);
      ptx::Words4 words{};
      if (p.selection.has(at)) {
        words = ptx::ld_global_nc_v4(p.x.head({at.batch, pair.head}) + at.row * p.x.token_stride +
                                     16 * piece);
        apply<T>(p.map, words.x);
      }
      if (p.angles.data != nullptr) {
        PieceAngles::load(p.angles.row(token) + 8 * piece).template rotate<T>(words);
      }
      ptx::st_global_v4(to + token * p.features.token_stride + 16 * piece, words);
    }
  }

 private:
  static constexpr std::uint32_t kPieces = D / 8;
  static constexpr std::uint32_t kPasses = 4;

  /// Thread blocks per head.
  static MHLA_HOST_DEVICE constexpr unsigned parts(const Params& p) {
    return (static_cast<unsigned>(p.tokens) * kPieces - 1) / (kPasses * kThreads) + 1;
  }
};

}  // namespace mhla::cuda
