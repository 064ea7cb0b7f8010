#pragma once

/// \file
/// Products of keys with values, by one warp: 16 tokens' part of S = phi(K)^T V and of z.
///
///     sums[16 kRowTiles, 8 kTiles] += phi(K)^T[16 kRowTiles, 16] V[16, 8 kTiles]
///     key_sums[16 kRowTiles]       += phi(K)^T[16 kRowTiles, 16] filled[16]
///
/// phi is applied to the operand in registers. Both use phi(K) as rounded to T: z is the sum of
/// what S is made of. filled[t] is 1 where row t holds a token and 0 where the slot is empty: phi
/// of the zeros that are there instead need not be 0.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/fragment.cuh"

namespace mhla::cuda {

/// One number as a B operand of 8 equal columns: words of the 16 pairs at a shared address.
MHLA_DEVICE ptx::Words2 load_column(std::uint32_t pairs, std::uint32_t lane) {
  return {{ptx::load_shared(pairs + lane % 4 * 4), ptx::load_shared(pairs + lane % 4 * 4 + 16)}};
}

/// Tokens are rows row.. row + 15 of both tiles; rows of sums are columns 8 key_piece.. of k,
/// columns of sums are columns 8 value_piece.. of v. key_sums[t][0] is that of row lane / 4 of tile
/// t, key_sums[t][2] that of row lane / 4 + 8.
template <class T, class KeyTile, class ValueTile, int kRowTiles, int kTiles>
MHLA_DEVICE void multiply_key_values(float (&sums)[kRowTiles][kTiles][4],
                                     float (&key_sums)[kRowTiles][4], KeyTile k, ValueTile v,
                                     ptx::Words2 filled, std::uint32_t row, std::uint32_t key_piece,
                                     std::uint32_t value_piece, const FeatureMap& map,
                                     std::uint32_t lane) {
  ptx::Words4 a[kRowTiles];
  MHLA_CUDA_UNROLL
  for (int t = 0; t < kRowTiles; ++t) {
    a[t] = load_transposed_rows(k, row, key_piece + 2 * t, lane);
    apply<T>(map, a[t].x);
    ptx::multiply_add_16<T>(key_sums[t], a[t].x[0], a[t].x[1], a[t].x[2], a[t].x[3], filled.x[0],
                            filled.x[1]);
  }
  const TilePlace at = columns_place(lane);
  MHLA_CUDA_UNROLL
  for (int j = 0; j + 1 < kTiles; j += 2) {
    const ptx::Words4 b =
        ptx::load_matrices_4_transposed(v.piece(row + at.row, value_piece + j + at.piece));
    MHLA_CUDA_UNROLL
    for (int t = 0; t < kRowTiles; ++t) {
      const std::uint32_t* const w = a[t].x;
      ptx::multiply_add_16<T>(sums[t][j], w[0], w[1], w[2], w[3], b.x[0], b.x[1]);
      ptx::multiply_add_16<T>(sums[t][j + 1], w[0], w[1], w[2], w[3], b.x[2], b.x[3]);
    }
  }
  if constexpr (kTiles % 2 != 0) {
    const ptx::Words2 b =
        ptx::load_matrices_2_transposed(v.piece(row + at.row, value_piece + kTiles - 1));
    MHLA_CUDA_UNROLL
    for (int t = 0; t < kRowTiles; ++t) {
      const std::uint32_t* const w = a[t].x;
      ptx::multiply_add_16<T>(sums[t][kTiles - 1], w[0], w[1], w[2], w[3], b.x[0], b.x[1]);
    }
  }
}

}  // namespace mhla::cuda
