#pragma once

/// \file
/// Mixing of summaries in shared memory (layout.cuh), in place, without barriers between warps:
///
///     S~_i = sum_b m_ib S_b
///
/// It is the product of m [rows, columns], as A operand, with 16 numbers of every region, from the
/// same row and columns of each, as B operand. The products replace these numbers: the warp that
/// reads a number also overwrites it. Each m is the sum of two numbers of T (outputs.cuh). Sums are
/// float and results are rounded to T. The vectors z_b are mixed in float.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/outputs.cuh"

namespace mhla::cuda {

/// A thread's part of m as A operands of 16 x 16, zero outside of its rows and columns.
template <int kSteps>
struct MixingOperand {
  ptx::Words4 high[kSteps][kSteps];
  ptx::Words4 low[kSteps][kSteps];
};

/// \param m              first row in device memory
/// \param stride         elements from one row to the next
/// \param column_stride  elements from one column to the next
template <class T, int kSteps>
MHLA_DEVICE MixingOperand<kSteps> load_mixing(const float* m, std::int64_t stride,
                                              std::uint32_t rows, std::uint32_t columns,
                                              std::uint32_t lane, std::int64_t column_stride = 1) {
  const auto load = [&](std::uint32_t i, std::uint32_t b) {
    return i < rows && b < columns ? ptx::ld_global_nc_f32(m + i * stride + b * column_stride)
                                   : 0.0f;
  };
  MixingOperand<kSteps> operand;
  MHLA_CUDA_UNROLL
  for (int r = 0; r < kSteps; ++r) {
    MHLA_CUDA_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      MHLA_CUDA_UNROLL
      for (int w = 0; w < 4; ++w) {  // 8 rows further, then 8 columns
        const std::uint32_t i = 16 * r + w % 2 * 8 + lane / 4;
        const std::uint32_t b = 16 * s + w / 2 * 8 + lane % 4 * 2;
        const Parts parts = parts_of<T>(load(i, b), load(i, b + 1));
        operand.high[r][s].x[w] = parts.high;
        operand.low[r][s].x[w] = parts.low;
      }
    }
  }
  return operand;
}

/// Mixes the regions by kWarps warps, each of which passes its index. Regions from `columns` on
/// count as zero and are not read. Regions from `rows` on do not change.
/// \param zeros  shared address of 128 zero bytes, a multiple of 128
template <class T, int kWarps, class Regions, int kSteps>
MHLA_DEVICE void mix_regions(Regions regions, const MixingOperand<kSteps>& m, std::uint32_t zeros,
                             std::uint32_t rows, std::uint32_t columns, std::uint32_t warp,
                             std::uint32_t lane) {
  constexpr std::uint32_t kUnits = Regions::kRows * Regions::kPieces / 2;  // two pieces each
  constexpr std::uint32_t kTogether = kSteps == 1 ? 4 : 2;  // loads in flight at once
  const auto exists = [](std::uint32_t unit) {
    return kUnits % (kTogether * kWarps) == 0 || unit < kUnits;
  };
  const auto address = [&](std::uint32_t region, std::uint32_t unit, std::uint32_t j) {
    const std::uint32_t piece = 2 * unit + j;
    return regions.piece(region, piece / Regions::kPieces, piece % Regions::kPieces);
  };
  const TileCoord from = columns_coord(lane);
  MHLA_CUDA_LOOP
  for (std::uint32_t first = warp; first < kUnits; first += kTogether * kWarps) {
    ptx::Words4 b[kTogether][kSteps];
    MHLA_CUDA_UNROLL
    for (std::uint32_t u = 0; u < kTogether; ++u) {
      if (!exists(first + u * kWarps)) break;
      MHLA_CUDA_UNROLL
      for (int s = 0; s < kSteps; ++s) {
        const std::uint32_t region = 16 * s + from.row;
        const std::uint32_t source = address(region, first + u * kWarps, from.piece);
        // Zeros in the banks of the absent region.
        b[u][s] = ptx::ldmatrix_x4_trans(region < columns ? source : zeros + source % 128);
      }
    }
    ptx::bar_warp_sync();  // all threads have read the numbers that are replaced
    MHLA_CUDA_UNROLL
    for (std::uint32_t u = 0; u < kTogether; ++u) {
      if (!exists(first + u * kWarps)) break;
      MHLA_CUDA_UNROLL
      for (int r = 0; r < kSteps; ++r) {
        MHLA_CUDA_UNROLL
        for (int j = 0; j < 2; ++j) {
          float c[4] = {};
          MHLA_CUDA_UNROLL
          for (int s = 0; s < kSteps; ++s) {
            const std::uint32_t* const x = b[u][s].x + 2 * j;
            const std::uint32_t* const h = m.high[r][s].x;
            const std::uint32_t* const l = m.low[r][s].x;
            ptx::mma_m16n8k16<T>(c, l[0], l[1], l[2], l[3], x[0], x[1]);
            ptx::mma_m16n8k16<T>(c, h[0], h[1], h[2], h[3], x[0], x[1]);
          }
          const std::uint32_t i = 16 * r + lane / 4, column = lane % 4 * 4;
          const std::uint32_t unit = first + u * kWarps;
          if (i < rows) ptx::st_shared(address(i, unit, j) + column, ptx::pack<T>(c[0], c[1]));
          if (i + 8 < rows) {
            ptx::st_shared(address(i + 8, unit, j) + column, ptx::pack<T>(c[2], c[3]));
          }
        }
      }
    }
  }
}

/// Mixes up to kCount vectors of kWidth floats in shared memory by kWarps warps. Call mix(), then a
/// barrier, then store().
template <int kWarps, int kCount, int kWidth>
struct VectorMixing {
  static constexpr int kVectors = (kCount + kWarps - 1) / kWarps;  ///< vectors per warp
  static constexpr int kParts = (kWidth + 31) / 32;  ///< parts of a vector, one number per lane
  static constexpr int kSums = kVectors * kParts;

  std::uint32_t vectors;  ///< shared address
  std::uint32_t warp;
  std::uint32_t lane;
  float sums[kSums];

  MHLA_DEVICE std::uint32_t vector(int sum) const { return sum % kVectors * kWarps + warp; }
  MHLA_DEVICE std::uint32_t number(int sum) const { return sum / kVectors * 32 + lane; }

  MHLA_DEVICE void mix(const float* m, std::int64_t stride, std::uint32_t rows,
                       std::uint32_t columns, std::int64_t column_stride = 1) {
    MHLA_CUDA_UNROLL
    for (int o = 0; o < kSums; ++o) {
      sums[o] = 0;
      if (vector(o) >= rows) continue;
      const std::uint32_t index = number(o) < kWidth ? number(o) : kWidth - 1;
      for (std::uint32_t b = 0; b < columns; ++b) {
        sums[o] += ptx::ld_global_nc_f32(m + vector(o) * stride + b * column_stride) *
                   ptx::ld_shared_f32(vectors + (b * kWidth + index) * 4);
      }
    }
  }
  MHLA_DEVICE void store(std::uint32_t rows) const {
    MHLA_CUDA_UNROLL
    for (int o = 0; o < kSums; ++o) {
      if (vector(o) >= rows || number(o) >= kWidth) continue;
      ptx::st_shared_f32(vectors + (vector(o) * kWidth + number(o)) * 4, sums[o]);
    }
  }
};

}  // namespace mhla::cuda
