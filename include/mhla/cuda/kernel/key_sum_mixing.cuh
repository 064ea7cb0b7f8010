#pragma once

/// \file
/// Mixtures of key sums, z~_i = sum_b m_ib z_b, in float: 16 rows i of a pair by a block of 128
/// threads. A thread has a column, and of the rows one of 128 / D parts. Coefficients of 32 b at a
/// time pass through shared memory, 2048 bytes.

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
  static constexpr int kRows = 16;
  static constexpr int kTiles = 64 / kRows;  ///< that make the rows of a tile of mixtures

  const MixingParameters& p;
  std::int64_t pair;
  std::int32_t first;  ///< row
  std::int32_t depth;  ///< b from here on do not count for any of the rows
  std::uint32_t shared;
  std::uint32_t thread;

  MHLA_DEVICE void run() const {
    constexpr int kAhead = 8;  // z_b loaded together
    if (first >= p.rows) return;
    const auto part = static_cast<std::int32_t>(thread / D);
    const std::int32_t row = first + kOwnRows * part;
    const std::uint32_t column = thread % D;
    const float* const z = p.in.key_sum + pair * p.columns * D + column;
    float sums[kOwnRows] = {};
    MHLA_CUDA_LOOP
    for (std::int32_t b = 0; b < depth; b += kStrip) {
      ptx::bar_sync();
      store_factors(b);
      ptx::bar_sync();
      if (part >= kParts) continue;
      MHLA_CUDA_LOOP
      for (std::int32_t own = 0; own < kStrip && b + own < depth; own += kAhead) {
        float x[kAhead];
        MHLA_CUDA_UNROLL
        for (int j = 0; j < kAhead; ++j) {
          const std::int64_t from = b + own + j;
          x[j] = from < depth ? ptx::ld_global_f32(z + from * D) : 0;
        }
        add(shared + static_cast<std::uint32_t>(4 * (kOwnRows * part * kStrip + own)), row, b + own,
            x, sums);
      }
    }
    if (part >= kParts) return;
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kOwnRows; ++r) {
      if (row + r < p.rows) {
        ptx::st_global_f32(p.out.key_sum + (pair * p.rows + row + r) * D + column, sums[r]);
      }
    }
  }

 private:
  static constexpr int kThreads = 128;
  static constexpr int kStrip = 32;
  static constexpr int kParts = kThreads / D;
  static constexpr int kOwnRows = kRows / kParts;  // of a thread

  /// m of the rows and 32 b as floats, rows of 128 bytes.
  MHLA_DEVICE void store_factors(std::int32_t b) const {
    MHLA_CUDA_UNROLL
    for (std::uint32_t index = 0; index < kRows * kStrip / kThreads; ++index) {
      const auto own = static_cast<std::int32_t>(index * kThreads + thread);
      const std::int32_t i = first + own / kStrip;
      const std::int32_t from = b + own % kStrip;
      const bool counts = from < p.end(i);
      ptx::st_shared_f32(shared + 4 * static_cast<std::uint32_t>(own),
                         counts ? ptx::ld_global_nc_f32(p.mixing.row(i) + from) : 0);
    }
  }

  /// sums[r] += m_ib x_j, i = row + r, b = begin + j, of those that count. m_ib is in row r of the
  /// rows at `factors`.
  template <int kAhead>
  MHLA_DEVICE void add(std::uint32_t factors, std::int32_t row, std::int32_t begin,
                       const float (&x)[kAhead], float (&sums)[kOwnRows]) const {
    MHLA_CUDA_UNROLL
    for (int r = 0; r < kOwnRows; ++r) {
      const std::int32_t last = p.end(row + r);
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kAhead; j += 4) {
        const ptx::Words4 m =
            ptx::ld_shared_v4(factors + static_cast<std::uint32_t>(4 * (kStrip * r + j)));
        MHLA_CUDA_UNROLL
        for (int k = 0; k < 4; ++k) {
          if (begin + j + k < last) sums[r] += as_float(m.x[k]) * x[j + k];
        }
      }
    }
  }
};

}  // namespace mhla::cuda
