#pragma once

/// \file
/// Sums over the tokens of every block:
///
///     z_b = sum_{t in b} w_t phi(x_t)     [D] floats, phi rounded to T; w_t = 1 without weights
///
/// A thread block has one block of tokens of one pair: thread block pair * M + b along x. A thread
/// has a piece of 16 bytes of every kRows-th token. The order of the sums is fixed, so that bits
/// are the same in every run.
///
/// Shared memory: one sum per thread. Device memory: x and weights once, z once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/column_sums.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

struct TokenSumParameters {
  ConstTokenTensor x;  ///< [B, N, H, D]
  TokenBlocks blocks;
  std::int32_t heads;
  FeatureMap map;
  const float* weights;  ///< [pairs, M, W], or null
  float* sums;           ///< [pairs, M, D]
};

template <class T, int D>
struct TokenSumsSm80 {
  using Params = TokenSumParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  using Sums = ColumnSums<kThreads, D>;
  static constexpr int kPieces = Sums::kPieces;
  static constexpr int kRows = Sums::kRows;
  static constexpr int kSharedBytes = Sums::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = 8;
  static constexpr int kRegisters = 64;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * static_cast<unsigned>(p.blocks.blocks());
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const std::uint32_t thread = ptx::tid_x(), item = ptx::ctaid_x();
    const auto blocks = static_cast<std::uint32_t>(p.blocks.blocks());
    const BatchHead pair = batch_head(static_cast<std::int32_t>(item / blocks), p.heads);
    const BlockOrigin origin = p.blocks.origin(static_cast<std::int32_t>(item % blocks));
    const std::uint32_t row = thread / kPieces, piece = thread % kPieces;
    const unsigned char* const x = p.x.head(pair) + kPieceBytes<T> * piece;
    const std::int64_t first = std::int64_t{item} * p.blocks.slots();
    float sums[8] = {};
    MHLA_CUDA_LOOP
    for (auto slot = static_cast<std::int32_t>(row); row < kRows && slot < p.blocks.slots();
         slot += kRows) {
      const std::int32_t token = p.blocks.token(origin, slot);
      if (token < 0) continue;
      auto eight = Eight<T>::load(x + token * p.x.token_stride);
      const float weight =
          p.weights != nullptr ? ptx::ld_global_nc_f32(p.weights + first + slot) : 1;
      eight.apply_map(p.map);
      float features[8];
      eight.to_floats(features);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 8; ++i) sums[i] += weight * features[i];
    }
    Sums::write(sums, p.sums + std::int64_t{item} * D);
  }
};

}  // namespace mhla::cuda
