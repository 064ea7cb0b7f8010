#pragma once

/// \file
/// Mixtures of key sums, z~_i = sum_b m_ib z_b, in float, by a team of warps. A warp has 64 columns
/// of a pair and 20 rows i. For long sums it has 128 columns (of one pair or two) and 16 rows,
/// which costs less per row. A thread has two or four columns. Shared memory holds z of 16 b,
/// loaded once for the rows of all warps, and m of each warp's rows.
///
///     shared memory    z: 16 x 64 or 128 floats | m: 20 or 16 x 16 floats per warp

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

/// \tparam kWarps    warps of the team, which synchronise at barrier 3
/// \tparam kColumns  64 or 128
template <int D, int kWarps, int kColumns>
struct KeySumTeam {
  static constexpr int kRowsPerWarp = kColumns == 64 ? 20 : 16;  ///< rows per warp
  static constexpr int kRows = kWarps * kRowsPerWarp;
  static constexpr int kColumnsPerThread = kColumns / 32;  ///< columns per thread
  static constexpr int kPairs = kColumns > D ? kColumns / D : 1;
  static constexpr int kColumnGroups = D > kColumns ? D / kColumns : 1;  ///< column groups per pair
  static constexpr int kStrip = 16;
  static constexpr int kSumBytes = 4 * kStrip * kColumns;
  static constexpr int kFactorBytes = 4 * kStrip * kRowsPerWarp;  ///< bytes per warp
  static constexpr int kBytes = kSumBytes + kWarps * kFactorBytes;
  static_assert(kColumns % D == 0 || D % kColumns == 0, "no column group is ragged");

  const MixingParameters& p;
  std::int32_t pairs;    ///< number of all pairs
  std::int32_t pair;     ///< first pair of the team
  std::int32_t column;   ///< first column of that pair
  std::int32_t first;    ///< first row of the team
  std::uint32_t shared;  ///< kBytes that no other thread uses
  std::uint32_t thread;  ///< index in the team

  MHLA_DEVICE void run() const {
    const std::int32_t row = first + kRowsPerWarp * static_cast<std::int32_t>(thread / 32);
    const std::int32_t depth = end(first, kRows), warp_depth = end(row, kRowsPerWarp);
    float sums[kRowsPerWarp][kColumnsPerThread] = {};
    MHLA_CUDA_LOOP
    for (std::int32_t b = 0; b < depth; b += kStrip) {
      ptx::bar_sync(3, 32 * kWarps);  // all have read the previous strip
      copy_sums(b, depth);
      const bool whole = row + kRowsPerWarp <= p.rows && b + kStrip <= p.end(row);
      if (whole) {
        store_factors<true>(row, b);
      } else if (b < warp_depth) {
        store_factors<false>(row, b);
      }
      ptx::cp_async_wait_group<0>();
      ptx::bar_sync(3, 32 * kWarps);  // this strip has arrived
      if (whole) {
        add<true>(row, b, sums);
      } else if (b < warp_depth) {
        add<false>(row, b, sums);
      }
    }
    const std::uint32_t team_column = thread % 32 * kColumnsPerThread;
    const std::int32_t thread_pair = pair_of(team_column);
    float* const to =
        p.out.key_sum + (std::int64_t{thread_pair} * p.rows + row) * D + column + team_column % D;
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kRowsPerWarp; ++r) {
      if (thread_pair >= pairs || row + r >= p.rows) continue;
      MHLA_CUDA_UNROLL
      for (int c = 0; c < kColumnsPerThread; ++c) ptx::st_global_f32(to + r * D + c, sums[r][c]);
    }
  }

 private:
  /// Returns the end of the b that any of `rows` rows uses.
  MHLA_DEVICE std::int32_t end(std::int32_t row, std::int32_t rows) const {
    return row < p.rows ? p.end(row + rows < p.rows ? row + rows - 1 : p.rows - 1) : 0;
  }
  /// Returns the pair of a column of the team.
  MHLA_DEVICE std::int32_t pair_of(std::uint32_t team_column) const {
    return pair + static_cast<std::int32_t>(team_column / D);
  }
  MHLA_DEVICE std::uint32_t factors() const {
    return shared + kSumBytes + thread / 32 * kFactorBytes;
  }

  /// Starts to copy z_b of a strip, with zeros for b that no row uses.
  MHLA_DEVICE void copy_sums(std::int32_t begin, std::int32_t depth) const {
    constexpr int kTogether = 4 * 32 * kWarps / kColumns;  // b per pass of all threads
    const std::uint32_t team_column = 4 * thread % kColumns;
    const auto row = static_cast<std::int32_t>(4 * thread / kColumns);
    const std::int32_t lead = p.mixing.lead, last = pair_of(team_column) < pairs ? depth : 0;
    const float* const from =
        p.in.key_sum +
        (p.in.first(pair_of(team_column), p.columns - lead) + begin + row - lead) * D + column +
        team_column % D;
    MHLA_CUDA_UNROLL
    for (std::int32_t i = 0; i < kStrip; i += kTogether) {
      if (row + i >= kStrip) continue;
      const std::int32_t b = begin + row + i;
      const bool exists = b >= lead && b < last;
      ptx::cp_async_16(shared + 16 * thread + static_cast<std::uint32_t>(4 * kColumns * i),
                       exists ? from + i * D : p.in.key_sum, exists ? 16 : 0);
    }
    ptx::cp_async_commit_group();
  }

  /// Stores m of the warp's rows, two rows at a time.
  /// \tparam kWhole  all rows exist and use the whole strip
  template <bool kWhole>
  MHLA_DEVICE void store_factors(std::int32_t row, std::int32_t begin) const {
    // The fence keeps the matrix and the ends of rows from being computed early, since sums need
    // the registers.
    std::uint32_t fenced[] = {thread % 32, static_cast<std::uint32_t>(pair)};
    ptx::fence_registers(fenced);
    const std::uint32_t lane = fenced[0];
    const MixingArray mixing = p.matrix(static_cast<std::int32_t>(fenced[1]));
    const std::int32_t b = begin + static_cast<std::int32_t>(lane % kStrip);
    const std::int32_t lane_row = row + static_cast<std::int32_t>(lane / kStrip);
    const float* from = mixing.row(lane_row) + b;
    float m[kRowsPerWarp / 2];
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kRowsPerWarp; r += 2, from += 2 * mixing.stride) {
      m[r / 2] = kWhole || b < p.end(lane_row + r) ? ptx::ld_global_nc_f32(from) : 0;
    }
    MHLA_CUDA_UNROLL
    for (std::uint32_t r = 0; r < kRowsPerWarp; r += 2) {
      ptx::st_shared_f32(factors() + 4 * (kStrip * r + lane), m[r / 2]);
    }
  }

  /// Adds sums[r] += m_ib z_b for the strip of b from `begin` on, over the b that i = row + r uses.
  /// With kWhole all rows use all b, without a test.
  template <bool kWhole>
  MHLA_DEVICE void add(std::int32_t row, std::int32_t begin,
                       float (&sums)[kRowsPerWarp][kColumnsPerThread]) const {
    constexpr int kAhead = 4;
    MHLA_CUDA_LOOP
    for (std::int32_t offset = 0; offset < kStrip; offset += kAhead) {
      const std::int32_t later = p.earlier ? begin + offset - p.mixing.diagonal(row)
                                           : -kAhead;  // later than the first row
      float x[kAhead][kColumnsPerThread];
      MHLA_CUDA_UNROLL
      for (int k = 0; k < kAhead; ++k) load_columns(offset + k, x[k]);
      MHLA_CUDA_UNROLL
      for (int r = 0; r < kRowsPerWarp; ++r) {
        const ptx::Words4 m =
            ptx::ld_shared_v4(factors() + static_cast<std::uint32_t>(4 * (kStrip * r + offset)));
        MHLA_CUDA_UNROLL
        for (int k = 0; k < kAhead; ++k) {
          if (!kWhole && later + k >= r) continue;
          MHLA_CUDA_UNROLL
          for (int c = 0; c < kColumnsPerThread; ++c) sums[r][c] += as_float(m.x[k]) * x[k][c];
        }
      }
    }
  }

  /// Loads the thread's columns of z_b of a strip.
  MHLA_DEVICE void load_columns(int b, float (&x)[kColumnsPerThread]) const {
    const std::uint32_t from =
        shared + 4 * (kColumns * static_cast<std::uint32_t>(b) + thread % 32 * kColumnsPerThread);
    if constexpr (kColumnsPerThread == 4) {
      const ptx::Words4 words = ptx::ld_shared_v4(from);
      MHLA_CUDA_UNROLL
      for (int c = 0; c < kColumnsPerThread; ++c) x[c] = as_float(words.x[c]);
    } else {
      const ptx::Words2 words = ptx::ld_shared_v2(from);
      MHLA_CUDA_UNROLL
      for (int c = 0; c < kColumnsPerThread; ++c) x[c] = as_float(words.x[c]);
    }
  }
};

}  // namespace mhla::cuda
