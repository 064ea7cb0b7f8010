#pragma once

/// \file
/// Mixtures of key sums, z~_i = sum_b m_ib z_b, in float. A warp computes kRows rows i and 32
/// columns of a pair, a thread one column. Coefficients of 32 b at a time pass through shared
/// memory.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

template <int D>
struct KeySumMixing {
  static constexpr int kRows = 4;
  static constexpr int kColumnGroups = (D + 31) / 32;  ///< groups of 32 columns
  static constexpr int kStrip = 32;
  static constexpr int kBytes = 4 * kRows * kStrip;  ///< shared memory per warp

  const MixingParameters& p;
  MixingArray mixing;  ///< the pair's
  std::int64_t pair;
  std::int32_t first;  ///< first row
  std::int32_t column_group;
  std::uint32_t shared;  ///< kBytes that no other warp uses
  std::uint32_t lane;

  MHLA_DEVICE void run() const {
    if (first >= p.rows) return;
    const std::int32_t depth = p.end(first + kRows < p.rows ? first + kRows - 1 : p.rows - 1);
    float sums[kRows] = {};
    MHLA_CUDA_LOOP
    for (std::int32_t b = 0; b < depth; b += kStrip) {
      ptx::bar_warp_sync();
      store_factors(b);
      ptx::bar_warp_sync();
      if (b + kStrip <= p.end(first)) {
        add<true>(b, depth, sums);
      } else {
        add<false>(b, depth, sums);
      }
    }
    if (!has_column()) return;
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (first + r < p.rows) {
        ptx::st_global_f32(p.out.key_sum + (pair * p.rows + first + r) * D + column(), sums[r]);
      }
    }
  }

 private:
  MHLA_DEVICE std::int32_t column() const {
    return 32 * column_group + static_cast<std::int32_t>(lane);
  }
  MHLA_DEVICE bool has_column() const { return D % 32 == 0 || column() < D; }

  /// Stores m of the rows and 32 b as floats, rows of 128 bytes.
  MHLA_DEVICE void store_factors(std::int32_t begin) const {
    constexpr int kAhead = kRows < 8 ? kRows : 8;  // rows loaded together
    const std::int32_t b = begin + static_cast<std::int32_t>(lane);
    const float* from = mixing.row(first) + b;
    std::uint32_t to = shared + 4 * lane;
    MHLA_CUDA_LOOP
    for (std::int32_t i = first; i < first + kRows; i += kAhead) {
      MHLA_CUDA_UNROLL
      for (int r = 0; r < kAhead; ++r, from += mixing.stride, to += 4 * kStrip) {
        ptx::st_shared_f32(to, b < p.end(i + r) ? ptx::ld_global_nc_f32(from) : 0);
      }
    }
  }

  /// Adds sums[r] += m_ib z_b for the strip of b from `begin` on, over the b that row i = first + r
  /// uses. With kWhole all rows use all b, without a test. From `depth` on m and z_b are 0.
  template <bool kWhole>
  MHLA_DEVICE void add(std::int32_t begin, std::int32_t depth, float (&sums)[kRows]) const {
    constexpr int kAhead = 8;  // z_b loaded together
    const std::int32_t lead = p.mixing.lead;
    const float* const z = p.in.key_sum + p.in.first(pair, p.columns - lead) * D + column();
    MHLA_CUDA_LOOP
    for (std::int32_t offset = 0; offset < kStrip && begin + offset < depth; offset += kAhead) {
      const std::int32_t later = p.earlier ? begin + offset - p.mixing.diagonal(first)
                                           : -kAhead;  // later than the first row
      float x[kAhead];
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kAhead; ++j) {
        const std::int64_t b = begin + offset + j - lead;
        const bool exists = b >= 0 && b < depth - lead;
        x[j] = has_column() && exists ? ptx::ld_global_f32(z + b * D) : 0;
      }
      MHLA_CUDA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        MHLA_CUDA_UNROLL
        for (int j = 0; j < kAhead; j += 4) {
          const ptx::Words4 m =
              ptx::ld_shared_v4(shared + static_cast<std::uint32_t>(4 * (kStrip * r + offset + j)));
          MHLA_CUDA_UNROLL
          for (int k = 0; k < 4; ++k) {
            if (kWhole || later + j + k < r) {
              sums[r] += as_float(m.x[k]) * x[j + k];
            }
          }
        }
      }
    }
  }
};

}  // namespace mhla::cuda
