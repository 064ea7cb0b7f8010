#pragma once

/// \file
/// Part of causal denominators that comes from the token's own block:
///
///     d_t = m_ii sum_j phi(q_t) . phi(k_j)     j <= t in block i
///
/// A thread block has 64 tokens of a block of one pair, a warp 16, and all keys up to them.
/// Shared memory: none. Device memory: phi(q) once, phi(k) once per 16 tokens, sums once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/row_pieces.cuh"
#include "mhla/cuda/tile/rows.cuh"

namespace mhla::cuda {

struct IntraBlockSumParameters {
  ConstTokenTensor q;  ///< phi(q) [B, N, H, D]
  ConstTokenTensor k;  ///< phi(k) [B, N, H, D]
  TokenBlocks blocks;  ///< runs of consecutive tokens
  std::int32_t heads;
  MixingArray mixing;
  float* sums;  ///< [pairs, M, W]
};

/// Rows of a block of tokens that a warp processes: 16.
struct IntraBlockRows {
  std::int64_t item;  ///< pair * M + block
  std::int32_t block;
  BatchHead pair;
  std::int32_t first;  ///< token of the block's first slot
  std::int32_t count;  ///< tokens of the block
  std::int32_t row;    ///< slot of the warp's first row
  std::uint32_t lane;

  static constexpr std::int32_t kRows = 64;  ///< rows per thread block

  /// Thread blocks per block of tokens.
  static MHLA_HOST_DEVICE constexpr unsigned parts(const TokenBlocks& blocks) {
    return (static_cast<unsigned>(blocks.slots()) - 1) / kRows + 1;
  }
  static MHLA_DEVICE IntraBlockRows of_warp(const TokenBlocks& blocks, std::int32_t heads) {
    const std::uint32_t item = ptx::ctaid_x() / parts(blocks),
                        part = ptx::ctaid_x() % parts(blocks);
    const auto count = static_cast<std::uint32_t>(blocks.blocks());
    const auto block = static_cast<std::int32_t>(item % count);
    const std::int32_t first = block * blocks.slots(), left = blocks.tokens() - first;
    return {
        item,
        block,
        batch_head(static_cast<std::int32_t>(item / count), heads),
        first,
        left < blocks.slots() ? left : blocks.slots(),
        static_cast<std::int32_t>(part) * kRows + static_cast<std::int32_t>(ptx::tid_x() / 32) * 16,
        ptx::tid_x() % 32};
  }

  /// Returns the row of a slot's token, or null for an empty slot.
  MHLA_DEVICE const unsigned char* at(const ConstTokenTensor& x, std::int32_t slot) const {
    return slot < count ? x.head(pair) + (first + slot) * x.token_stride : nullptr;
  }
  template <class Pieces>
  MHLA_DEVICE PiecesPair<Pieces> rows(const ConstTokenTensor& x, std::int32_t slot) const {
    const std::int32_t lane_row = slot + static_cast<std::int32_t>(lane / 4);
    return {Pieces::load(at(x, lane_row), lane), Pieces::load(at(x, lane_row + 8), lane)};
  }
  template <class Pieces>
  MHLA_DEVICE Pieces columns(const ConstTokenTensor& x, std::int32_t slot) const {
    return Pieces::load(at(x, slot + static_cast<std::int32_t>(lane / 4)), lane);
  }
};

template <class T, int D>
struct IntraBlockSumsSm80 {
  using Params = IntraBlockSumParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 4;
  static constexpr int kRegisters = 128;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * static_cast<unsigned>(p.blocks.blocks()) *
           IntraBlockRows::parts(p.blocks);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const IntraBlockRows at = IntraBlockRows::of_warp(p.blocks, p.heads);
    const auto q = at.template rows<FactorPieces<T, D>>(p.q, at.row);
    const std::int32_t row = at.row + static_cast<std::int32_t>(at.lane / 4);
    const std::int32_t end = at.row + 16 < at.count ? at.row + 16 : at.count;
    RowPair sums{0, 0};
    MHLA_CUDA_LOOP
    for (std::int32_t key = 0; key < end; key += 8) {
      float scores[4] = {};
      multiply_rows<T>(scores, q, at.template columns<FactorPieces<T, D>>(p.k, key));
      const std::int32_t column = key + static_cast<std::int32_t>(at.lane % 4 * 2);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (column + i <= row) sums.x += scores[i];
        if (column + i <= row + 8) sums.x_8 += scores[i + 2];
      }
    }
    sums = over_row(sums);
    const float m = ptx::ld_global_nc_f32(p.mixing.of(at.pair).row(at.block) + at.block);
    float* const to = p.sums + at.item * p.blocks.slots();
    if (at.lane % 4 == 0) {
      if (row < p.blocks.slots()) ptx::st_global_f32(to + row, m * sums.x);
      if (row + 8 < p.blocks.slots()) ptx::st_global_f32(to + row + 8, m * sums.x_8);
    }
  }
};

}  // namespace mhla::cuda
