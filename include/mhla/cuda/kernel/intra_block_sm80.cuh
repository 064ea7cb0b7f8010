#pragma once

/// \file
/// Part of a causal gradient that comes from the token's own block:
///
///     y_t += m_ii sum_j (a_t . b_j + w) c_j     [C], j <= t in block i, or j >= t with kLater
///
/// where w is 0, w_t of the row or w_j of the column. Products are rounded to T before they are
/// multiplied by c, and y is rounded once more.
///
/// A thread block has 64 rows t of a block of one pair, a warp 16. A warp's rows of a stay in
/// registers. b and c arrive in strips of 64 rows through two stages of shared memory, for all
/// warps.
///
/// Shared memory: two strips of b and c. Device memory: a once, b and c once per 64 rows, y read
/// and written once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/intra_block_sums_sm80.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/factors.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

struct IntraBlockParameters {
  ConstTokenTensor a;  ///< [B, N, H, K]
  ConstTokenTensor b;  ///< [B, N, H, K]
  ConstTokenTensor c;  ///< [B, N, H, C]
  TokenTensor y;       ///< [B, N, H, C]
  TokenBlocks blocks;  ///< runs of consecutive tokens
  std::int32_t heads;
  MixingArray mixing;
  const float* row_weights = nullptr;     ///< w_t [pairs, M, W], or null
  const float* column_weights = nullptr;  ///< w_j, or null
};

/// Parts of c's columns, each of which a launch takes: several where a and sums exceed the
/// registers.
template <class T, int K, int C>
inline constexpr int kIntraBlockParts = kIsFloat<T>            ? (K + C > 192 ? C / 64 : 1)
                                        : Width<K>::kParts > 1 ? Width<C>::kParts
                                                               : 1;

template <class T, int K, int C, bool kLater>
struct IntraBlockSm80 {
  using Params = IntraBlockParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  using Columns = FactorTile<T, 64, K>;  ///< rows of b
  using Values = FactorTile<T, 64, C>;   ///< rows of c
  static constexpr int kStageBytes = Columns::kBytes + Values::kBytes;
  static constexpr int kSharedBytes = 2 * kStageBytes;
  static constexpr int kBlocksPerMultiprocessor =
      resident_blocks(kThreads, (kIsFloat<T> ? 2 : 1) * K / 4 + C / 2 + 72, kSharedBytes);

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * static_cast<unsigned>(p.blocks.blocks()) *
           IntraBlockRows::parts(p.blocks);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const IntraBlockRows at = IntraBlockRows::of_warp(p.blocks, p.heads);
    const std::int32_t part = at.row / kRows;
    if (part * kRows >= at.count) return;
    const std::int32_t begin = kLater ? part * kRows : 0;
    const std::int32_t last =
        kLater || part * kRows + kRows > at.count ? at.count : part * kRows + kRows;
    copy_rows<kThreads>(columns(1), p.a.head(at.pair), p.a.token_stride, tokens(at, part * kRows),
                        ptx::tid_x());
    copy_strip(p, at, begin, 0);
    ptx::cp_async_wait_group<0>();
    if constexpr (kIsFloat<T>) split_copied<kThreads>(columns(1), ptx::tid_x());
    split_strip(0);
    ptx::bar_sync();
    const FactorRows<T, K> a =
        load_rows(columns(1), static_cast<std::uint32_t>(at.row % kRows), at.lane);
    ptx::bar_sync();
    const float m = ptx::ld_global_nc_f32(p.mixing.of(at.pair).row(at.block) + at.block);
    const RowPair weights = row_weights(p, at);
    float sums[C / 8][4] = {};
    std::uint32_t stage = 0;
    MHLA_CUDA_LOOP
    for (std::int32_t first = begin; first < last; first += kRows) {
      const bool more = first + kRows < last;
      if (more) copy_strip(p, at, first + kRows, stage ^ 1);
      MHLA_CUDA_LOOP
      for (std::int32_t group = first; group < first + kRows && group < at.count; group += 16) {
        if (kLater ? group + 15 < at.row : group > at.row + 15) continue;
        const auto row = static_cast<std::uint32_t>(group - first);
        float products[2][4] = {};
        if constexpr (kIsFloat<T>) {
          multiply_transposed(products, a, columns(stage), row, at.lane);
          weigh(p, at, weights, m, group, products);
          multiply_values(sums, split(products), values(stage), row, false, at.lane);
        } else {
          multiply_transposed<T>(products, a, columns(stage), row, at.lane);
          weigh(p, at, weights, m, group, products);
          const Fragment<16> weighed = rounded<T>(products);
          multiply_step<T>(sums, weighed.x[0], weighed.x[1], weighed.x[2], weighed.x[3],
                           values(stage), row, 0, at.lane);
        }
      }
      ptx::cp_async_wait_group<0>();
      if (more) split_strip(stage ^ 1);
      ptx::bar_sync();
      stage ^= 1;
    }
    add_to_rows(p, at, sums);
  }

 private:
  static constexpr std::int32_t kRows = IntraBlockRows::kRows;

  static MHLA_DEVICE Columns columns(std::uint32_t stage) {
    return {ptx::shared_begin() + stage * kStageBytes};
  }
  static MHLA_DEVICE Values values(std::uint32_t stage) {
    return {ptx::shared_begin() + stage * kStageBytes + Columns::kBytes};
  }
  /// Tokens of the slots from `first` on.
  static MHLA_DEVICE ConsecutiveTokens tokens(const IntraBlockRows& at, std::int32_t first) {
    return {at.first + first, at.first + at.count};
  }

  /// Starts the copies of b and c of 64 slots from `first` on, as a group.
  static MHLA_DEVICE void copy_strip(const Params& p, const IntraBlockRows& at, std::int32_t first,
                                     std::uint32_t stage) {
    copy_rows<kThreads>(columns(stage), p.b.head(at.pair), p.b.token_stride, tokens(at, first),
                        ptx::tid_x());
    copy_rows<kThreads>(values(stage), p.c.head(at.pair), p.c.token_stride, tokens(at, first),
                        ptx::tid_x());
    ptx::cp_async_commit_group();
  }

  /// Splits the floats of a strip that the thread copied. Numbers of 16 bits stay.
  static MHLA_DEVICE void split_strip(std::uint32_t stage) {
    if constexpr (kIsFloat<T>) {
      split_copied<kThreads>(columns(stage), ptx::tid_x());
      split_copied<kThreads>(values(stage), ptx::tid_x());
    }
  }

  /// Loads w_t of the thread's two rows.
  static MHLA_DEVICE RowPair row_weights(const Params& p, const IntraBlockRows& at) {
    RowPair weights{0, 0};
    if (p.row_weights == nullptr) return weights;
    const std::int32_t row = at.row + static_cast<std::int32_t>(at.lane / 4);
    const float* const from = p.row_weights + at.item * p.blocks.slots();
    if (row < at.count) weights.x = ptx::ld_global_nc_f32(from + row);
    if (row + 8 < at.count) weights.x_8 = ptx::ld_global_nc_f32(from + row + 8);
    return weights;
  }

  /// Computes m_ii (a_t . b_j + w) of 16 columns j from slot `group` on, with 0 for j that row t
  /// does not use.
  static MHLA_DEVICE void weigh(const Params& p, const IntraBlockRows& at, RowPair weights, float m,
                                std::int32_t group, float (&products)[2][4]) {
    const std::int32_t row = at.row + static_cast<std::int32_t>(at.lane / 4);
    MHLA_CUDA_UNROLL
    for (std::int32_t n = 0; n < 2; ++n) {
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 2; ++i) {
        const std::int32_t column = group + 8 * n + static_cast<std::int32_t>(at.lane % 4 * 2) + i;
        const bool filled = column < at.count;
        float w = 0;
        if (p.column_weights != nullptr && filled) {
          w = ptx::ld_global_nc_f32(p.column_weights + at.item * p.blocks.slots() + column);
        }
        const bool counts = filled && (kLater ? column >= row : column <= row);
        const bool counts_8 = filled && (kLater ? column >= row + 8 : column <= row + 8);
        products[n][i] = counts ? m * (products[n][i] + weights.x + w) : 0;
        products[n][i + 2] = counts_8 ? m * (products[n][i + 2] + weights.x_8 + w) : 0;
      }
    }
  }

  static MHLA_DEVICE void add_to_rows(const Params& p, const IntraBlockRows& at,
                                      const float (&sums)[C / 8][4]) {
    MHLA_CUDA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int32_t slot = at.row + static_cast<std::int32_t>(at.lane / 4) + 8 * half;
      if (slot >= at.count) continue;
      unsigned char* const row = p.y.head(at.pair) + (at.first + slot) * p.y.token_stride +
                                 kPieceBytes<T> / 4 * (at.lane % 4);
      MHLA_CUDA_UNROLL
      for (int j = 0; j < C / 8; ++j) {
        if constexpr (kIsFloat<T>) {
          auto* const y = static_cast<float*>(static_cast<void*>(row + 32 * j));
          ptx::st_global_v2(y, {{as_word(ptx::ld_global_f32(y) + sums[j][2 * half]),
                                 as_word(ptx::ld_global_f32(y + 1) + sums[j][2 * half + 1])}});
        } else {
          const std::uint32_t y = ptx::ld_global(row + 16 * j);
          ptx::st_global(row + 16 * j, ptx::pack<T>(ptx::low<T>(y) + sums[j][2 * half],
                                                    ptx::high<T>(y) + sums[j][2 * half + 1]));
        }
      }
    }
  }
};

}  // namespace mhla::cuda
