#pragma once

/// \file
/// Mixtures of key sums, z~_i = sum_b m_ib z_b, in float: 20 rows i for each of some warps and 64
/// columns of a pair by all together. A thread has two columns. z of 16 b passes through shared
/// memory, loaded once for the rows of all warps, and m of a warp's rows.
///
///     shared memory    z: 16 x 64 floats | m: 20 x 16 floats a warp

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

/// \tparam kWarps  that call together, and take barrier 3
template <int D, int kWarps>
struct KeySumTeam {
  static constexpr int kOwnRows = 20;  ///< of a warp
  static constexpr int kRows = kWarps * kOwnRows;
  static constexpr int kColumns = 64;
  static constexpr int kColumnGroups = D / kColumns;
  static constexpr int kStrip = 16;
  static constexpr int kSumBytes = 4 * kStrip * kColumns;
  static constexpr int kFactorBytes = 4 * kStrip * kOwnRows;  ///< of a warp
  static constexpr int kBytes = kSumBytes + kWarps * kFactorBytes;
  static_assert(D % kColumns == 0, "no column group is ragged");

  const MixingParameters& p;
  std::int64_t pair;
  std::int32_t first;  ///< row of the team
  std::int32_t column;
  std::uint32_t shared;  ///< kBytes that nobody else uses
  std::uint32_t thread;  ///< of the team

  MHLA_DEVICE void run() const {
    const std::int32_t row = first + kOwnRows * static_cast<std::int32_t>(thread / 32);
    const std::int32_t depth = end(first, kRows), own_depth = end(row, kOwnRows);
    float sums[kOwnRows][2] = {};
    MHLA_CUDA_LOOP
    for (std::int32_t b = 0; b < depth; b += kStrip) {
      ptx::bar_sync(3, 32 * kWarps);  // all have read the strip before
      store_sums(b, depth);
      store_factors(row, b);
      ptx::bar_sync(3, 32 * kWarps);  // this one is here
      if (b >= own_depth) continue;
      if (b + kStrip <= p.end(row)) {
        add<true>(row, b, sums);
      } else {
        add<false>(row, b, sums);
      }
    }
    float* const to = p.out.key_sum + (pair * p.rows + row) * D + column + thread % 32 * 2;
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kOwnRows; ++r) {
      if (row + r >= p.rows) continue;
      ptx::st_global_f32(to + r * D, sums[r][0]);
      ptx::st_global_f32(to + r * D + 1, sums[r][1]);
    }
  }

 private:
  /// b from here on count for none of so many rows.
  MHLA_DEVICE std::int32_t end(std::int32_t row, std::int32_t rows) const {
    return row < p.rows ? p.end(row + rows < p.rows ? row + rows - 1 : p.rows - 1) : 0;
  }
  MHLA_DEVICE std::uint32_t factors() const {
    return shared + kSumBytes + thread / 32 * kFactorBytes;
  }

  /// z_b of a strip, and zeros in place of those that do not count.
  MHLA_DEVICE void store_sums(std::int32_t begin, std::int32_t depth) const {
    const std::int32_t lead = p.mixing.lead;
    const float* const z = p.in.key_sum + p.in.first(pair, p.columns - lead) * D + column;
    MHLA_CUDA_UNROLL
    for (std::uint32_t i = 0; i < kSumBytes / 16; i += 32 * kWarps) {
      const std::uint32_t piece = i + thread;
      const std::int32_t b = begin + static_cast<std::int32_t>(piece / 16);
      if (piece >= kSumBytes / 16) continue;
      const bool exists = b >= lead && b < depth;
      ptx::st_shared_v4(
          shared + 16 * piece,
          exists ? ptx::ld_global_v4(z + (b - lead) * D + piece % 16 * 4) : ptx::Words4{});
    }
  }

  /// m of the warp's rows: of two of them at a time.
  MHLA_DEVICE void store_factors(std::int32_t row, std::int32_t begin) const {
    const std::uint32_t lane = thread % 32;
    const std::int32_t b = begin + static_cast<std::int32_t>(lane % kStrip);
    const std::int32_t own = row + static_cast<std::int32_t>(lane / kStrip);
    const float* from = p.mixing.row(own) + b;
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kOwnRows; r += 2) {
      const float m = b < p.end(own + r) ? ptx::ld_global_nc_f32(from + r * p.mixing.stride) : 0;
      ptx::st_shared_f32(factors() + 4 * (kStrip * r + lane), m);
    }
  }

  /// sums[r] += m_ib z_b of the strip of b from `begin` on: of those that count for i = row + r,
  /// or where all rows count all of them (kWhole) without asking.
  template <bool kWhole>
  MHLA_DEVICE void add(std::int32_t row, std::int32_t begin, float (&sums)[kOwnRows][2]) const {
    constexpr int kAhead = 4;
    MHLA_CUDA_LOOP
    for (std::int32_t own = 0; own < kStrip; own += kAhead) {
      const std::int32_t later =
          p.earlier ? begin + own - p.mixing.own(row) : -kAhead;  // than the first row
      float x[kAhead][2];
      MHLA_CUDA_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        const auto at = static_cast<std::uint32_t>(4 * kColumns * (own + k));
        const ptx::Words2 two = ptx::ld_shared_v2(shared + at + thread % 32 * 8);
        x[k][0] = as_float(two.x[0]);
        x[k][1] = as_float(two.x[1]);
      }
      MHLA_CUDA_UNROLL
      for (int r = 0; r < kOwnRows; ++r) {
        const ptx::Words4 m =
            ptx::ld_shared_v4(factors() + static_cast<std::uint32_t>(4 * (kStrip * r + own)));
        MHLA_CUDA_UNROLL
        for (int k = 0; k < kAhead; ++k) {
          if (!kWhole && later + k >= r) continue;
          sums[r][0] += as_float(m.x[k]) * x[k][0];
          sums[r][1] += as_float(m.x[k]) * x[k][1];
        }
      }
    }
  }
};

}  // namespace mhla::cuda
