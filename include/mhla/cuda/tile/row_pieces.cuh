#pragma once

/// \file
/// Products of rows of two tensors in device memory, x_t . y_j, without shared memory.
///
/// A sum over k may take its terms in any order. Thread p of a row's four threads therefore
/// loads the adjacent numbers 8 p.. 8 p + 7 of every 32, in 16 bytes. Two steps of mma take both
/// factors in that order. The thread loads 4 of a rest of 16 numbers, for one step. It loads 2 of a
/// rest of 8 numbers, for a step of half the depth.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

/// Part of a row of K 16-bit numbers that one thread holds.
template <int K>
struct RowPieces {
  static constexpr int kPieces = K / 32;
  static constexpr int kRest = K % 32 / 8;  ///< words of the rest
  static_assert(K % 8 == 0 && kPieces > 0 && kRest <= 2);

  ptx::Words4 pieces[kPieces];
  std::uint32_t rest[kRest == 2 ? 2 : 1];

  /// Loads a row that the grid does not write, and keeps it in L1 for other warps. A null row gives
  /// zeros.
  static MHLA_DEVICE RowPieces load(const unsigned char* row, std::uint32_t lane) {
    RowPieces loaded{};
    if (row == nullptr) return loaded;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      loaded.pieces[i] = ptx::ld_global_nc_kept_v4(row + 64 * i + 16 * (lane % 4));
    }
    if constexpr (kRest == 1) {
      loaded.rest[0] = ptx::ld_global_nc(row + 64 * kPieces + 4 * (lane % 4));
    } else if constexpr (kRest == 2) {
      const ptx::Words2 words = ptx::ld_global_nc_v2(row + 64 * kPieces + 8 * (lane % 4));
      loaded.rest[0] = words.x[0];
      loaded.rest[1] = words.x[1];
    }
    return loaded;
  }
};

/// Part of a row of K floats that one thread holds, split (tile/factors.cuh).
template <int K>
struct RowPartsPieces {
  RowPieces<K> high;
  RowPieces<K> low;

  /// Loads a row as RowPieces does.
  static MHLA_DEVICE RowPartsPieces load(const unsigned char* row, std::uint32_t lane) {
    RowPartsPieces loaded{};
    if (row == nullptr) return loaded;
    const auto set = [&](std::uint32_t& high, std::uint32_t& low, std::uint32_t x,
                         std::uint32_t y) {
      const Parts parts = parts_of<bfloat16>(as_float(x), as_float(y));
      high = parts.high;
      low = parts.low;
    };
    MHLA_CUDA_UNROLL
    for (int i = 0; i < RowPieces<K>::kPieces; ++i) {
      MHLA_CUDA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const ptx::Words4 x =
            ptx::ld_global_nc_kept_v4(row + 128 * i + 32 * (lane % 4) + 16 * half);
        MHLA_CUDA_UNROLL
        for (int j = 0; j < 2; ++j) {
          set(loaded.high.pieces[i].x[2 * half + j], loaded.low.pieces[i].x[2 * half + j],
              x.x[2 * j], x.x[2 * j + 1]);
        }
      }
    }
    constexpr int kRest = RowPieces<K>::kRest;
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kRest; ++j) {
      const ptx::Words2 x =
          ptx::ld_global_nc_v2(row + 128 * RowPieces<K>::kPieces + 8 * kRest * (lane % 4) + 8 * j);
      set(loaded.high.rest[j], loaded.low.rest[j], x.x[0], x.x[1]);
    }
    return loaded;
  }
};

/// Pieces of a row of K numbers of T.
template <class T, int K>
using FactorPieces = std::conditional_t<std::is_same_v<T, float>, RowPartsPieces<K>, RowPieces<K>>;

/// Rows lane / 4 and lane / 4 + 8 of 16.
template <class Pieces>
struct PiecesPair {
  Pieces x;
  Pieces x_8;
};
template <int K>
using RowPiecesPair = PiecesPair<RowPieces<K>>;

/// Adds sums[16, 8] += rows[16, K] columns[8, K]^T, as C of ptx/mma.cuh. A thread holds column lane
/// / 4.
template <class T, int K>
MHLA_DEVICE void multiply_rows(float (&sums)[4], const RowPiecesPair<K>& rows,
                               const RowPieces<K>& columns) {
  MHLA_CUDA_UNROLL
  for (int i = 0; i < RowPieces<K>::kPieces; ++i) {
    const std::uint32_t(&a)[4] = rows.x.pieces[i].x;
    const std::uint32_t(&a_8)[4] = rows.x_8.pieces[i].x;
    const std::uint32_t(&b)[4] = columns.pieces[i].x;
    ptx::mma_m16n8k16<T>(sums, a[0], a_8[0], a[1], a_8[1], b[0], b[1]);
    ptx::mma_m16n8k16<T>(sums, a[2], a_8[2], a[3], a_8[3], b[2], b[3]);
  }
  const auto& a = rows.x.rest;
  const auto& a_8 = rows.x_8.rest;
  if constexpr (RowPieces<K>::kRest == 1) {
    ptx::mma_m16n8k8<T>(sums, a[0], a_8[0], columns.rest[0]);
  } else if constexpr (RowPieces<K>::kRest == 2) {
    ptx::mma_m16n8k16<T>(sums, a[0], a_8[0], a[1], a_8[1], columns.rest[0], columns.rest[1]);
  }
}

/// The same for rows of floats.
template <class T, int K>
MHLA_DEVICE void multiply_rows(float (&sums)[4], const PiecesPair<RowPartsPieces<K>>& rows,
                               const RowPartsPieces<K>& columns) {
  const RowPiecesPair<K> high{rows.x.high, rows.x_8.high};
  multiply_rows<bfloat16>(sums, RowPiecesPair<K>{rows.x.low, rows.x_8.low}, columns.high);
  multiply_rows<bfloat16>(sums, high, columns.low);
  multiply_rows<bfloat16>(sums, high, columns.high);
}

}  // namespace mhla::cuda
