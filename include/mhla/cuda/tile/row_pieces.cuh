#pragma once

/// \file
/// Products of rows of two tensors in device memory, x_t . y_j, without shared memory.
///
/// A sum over k may take its terms in any order. Thread p of a row's four threads therefore
/// loads the adjacent numbers 8 p.. 8 p + 7 of every 32, in 16 bytes. Two steps of mma take both
/// factors in that order. The thread loads 4 of a rest of 16 numbers, for one step. It loads 2 of a
/// rest of 8 numbers, for a step of half the depth.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/mma.cuh"

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

/// Rows lane / 4 and lane / 4 + 8 of 16.
template <int K>
struct RowPiecesPair {
  RowPieces<K> x;
  RowPieces<K> x_8;
};

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

}  // namespace mhla::cuda
