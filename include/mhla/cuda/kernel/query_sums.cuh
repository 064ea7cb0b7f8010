#pragma once

/// \file
/// Sums of a head's queries, for Denominator::kCrossQuery in one thread block:
///
///     s_bw = phi(q_bw) . z_b         z_b: sum of phi(k_j) over the keys of block b
///     r_iw = sum_b m_ib s_bw         of the query in slot w of block i
///
/// A kernel that computes the scores phi(q_t) . phi(k_j) of a head gets s_bw as the sum of the
/// scores of a query with the keys of its own block. It stores s of all queries in shared memory.
/// After a barrier, the four threads of a row compute r.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"

namespace mhla::cuda {

/// Block and slot of a query, in one register. Blocks are less than 2^16 - 1.
struct QueryPlace {
  static constexpr std::uint32_t kNoBlock = 0xFFFF;  ///< after the last query

  std::uint32_t bits;

  static MHLA_DEVICE QueryPlace of(const TokenBlocks& blocks, std::int32_t query) {
    if (query >= blocks.tokens()) return {kNoBlock << 16};
    const auto block = static_cast<std::uint32_t>(blocks.block_of(query));
    return {block << 16 | static_cast<std::uint32_t>(blocks.slot_of(query))};
  }
  MHLA_DEVICE bool is_one() const { return bits >> 16 != kNoBlock; }
  MHLA_DEVICE std::int32_t block() const { return static_cast<std::int32_t>(bits >> 16); }
  MHLA_DEVICE std::int32_t slot() const { return static_cast<std::int32_t>(bits & 0xFFFFu); }
};

/// Places of queries lane / 4 and lane / 4 + 8 of 16.
struct QueryPlaces {
  QueryPlace rows[2];

  /// Places of queries first...
  static MHLA_DEVICE QueryPlaces of(const TokenBlocks& blocks, std::int32_t first,
                                    std::uint32_t lane) {
    const std::int32_t query = first + static_cast<std::int32_t>(lane / 4);
    return {{QueryPlace::of(blocks, query), QueryPlace::of(blocks, query + 8)}};
  }
};

/// s of all queries of a head as floats [W, pitch(M)] in shared memory. Every slot has a query.
struct QuerySums {
  std::uint32_t begin;  ///< shared address, a multiple of 4
  std::int32_t blocks;  ///< M

  /// Floats from one slot to the next. Threads of a warp that read or store together use different
  /// banks. All s take at most 16 bytes per query.
  static MHLA_HOST_DEVICE constexpr std::int32_t pitch(std::int32_t blocks) {
    return (blocks + 3) / 8 * 8 + 4;
  }
  /// Stores s, given parts of the four threads of each row. All threads of the warp call together.
  MHLA_DEVICE void store(const QueryPlaces& queries, RowPair parts, std::uint32_t lane) const {
    const RowPair s = over_row(parts);
    if (lane % 4 != 0) return;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const QueryPlace query = queries.rows[i];
      if (query.is_one()) ptx::st_shared_f32(at(query.block(), query.slot()), i == 0 ? s.x : s.x_8);
    }
  }
  /// Returns the thread's part of r: those of every fourth block.
  MHLA_DEVICE RowPair mixed(const MixingArray& mixing, const QueryPlaces& queries,
                            std::uint32_t lane) const {
    const auto first = static_cast<std::int32_t>(lane % 4);
    const float* m[2];
    std::uint32_t s[2];
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {  // after the last query, that of block 0
      const QueryPlace query = queries.rows[i];
      m[i] = mixing.row(query.is_one() ? query.block() : 0) + first;
      s[i] = at(first, query.slot());
    }
    RowPair r{0, 0};
    MHLA_CUDA_LOOP
    for (std::int32_t b = first; b < blocks; b += 4) {
      r.x += ptx::ld_global_nc_f32(m[0]) * ptx::ld_shared_f32(s[0]);
      r.x_8 += ptx::ld_global_nc_f32(m[1]) * ptx::ld_shared_f32(s[1]);
      m[0] += 4, m[1] += 4, s[0] += 16, s[1] += 16;
    }
    return r;
  }

 private:
  MHLA_DEVICE std::uint32_t at(std::int32_t block, std::int32_t slot) const {
    return begin + 4 * static_cast<std::uint32_t>(slot * pitch(blocks) + block);
  }
};

}  // namespace mhla::cuda
