#pragma once

/// \file
/// Products of 16 rows in registers with tiles in shared memory, by one warp:
///
///     sums[16, 8 kTiles] += rows[16, K] B[K, 8 kTiles]
///
/// sums[j] holds columns 8 j.. 8 j + 7 as C of ptx/mma.cuh. K is a multiple of 8.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/fragment.cuh"

namespace mhla::cuda {

/// Adds one step: 16 columns of A, and B = columns 8 piece.. of rows row.. row + 15 of the tile.
template <class T, class Tile, int kTiles>
MHLA_DEVICE void multiply_step(float (&sums)[kTiles][4], std::uint32_t a0, std::uint32_t a1,
                               std::uint32_t a2, std::uint32_t a3, Tile tile, std::uint32_t row,
                               std::uint32_t piece, std::uint32_t lane) {
  const TileCoord at = columns_coord(lane);
  MHLA_CUDA_UNROLL
  for (std::uint32_t j = 0; j + 1 < kTiles; j += 2) {
    const ptx::Words4 b = ptx::ldmatrix_x4_trans(tile.piece(row + at.row, piece + j + at.piece));
    ptx::mma_m16n8k16<T>(sums[j], a0, a1, a2, a3, b.x[0], b.x[1]);
    ptx::mma_m16n8k16<T>(sums[j + 1], a0, a1, a2, a3, b.x[2], b.x[3]);
  }
  if constexpr (kTiles % 2 != 0) {
    const ptx::Words2 b = ptx::ldmatrix_x2_trans(tile.piece(row + at.row, piece + kTiles - 1));
    ptx::mma_m16n8k16<T>(sums[kTiles - 1], a0, a1, a2, a3, b.x[0], b.x[1]);
  }
}

/// Adds one step for several tiles of 16 rows, A operands a[r], which share the loads of B.
template <class T, class Tile, int kRowTiles, int kTiles>
MHLA_DEVICE void multiply_step(float (&sums)[kRowTiles][kTiles][4],
                               const ptx::Words4 (&a)[kRowTiles], Tile tile, std::uint32_t row,
                               std::uint32_t piece, std::uint32_t lane) {
  if constexpr (kRowTiles == 1) {
    multiply_step<T>(sums[0], a[0].x[0], a[0].x[1], a[0].x[2], a[0].x[3], tile, row, piece, lane);
  } else {
    const TileCoord at = columns_coord(lane);
    MHLA_CUDA_UNROLL
    for (std::uint32_t j = 0; j + 1 < kTiles; j += 2) {
      const ptx::Words4 b = ptx::ldmatrix_x4_trans(tile.piece(row + at.row, piece + j + at.piece));
      MHLA_CUDA_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        const std::uint32_t(&x)[4] = a[r].x;
        ptx::mma_m16n8k16<T>(sums[r][j], x[0], x[1], x[2], x[3], b.x[0], b.x[1]);
        ptx::mma_m16n8k16<T>(sums[r][j + 1], x[0], x[1], x[2], x[3], b.x[2], b.x[3]);
      }
    }
    if constexpr (kTiles % 2 != 0) {
      const ptx::Words2 b = ptx::ldmatrix_x2_trans(tile.piece(row + at.row, piece + kTiles - 1));
      MHLA_CUDA_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        const std::uint32_t(&x)[4] = a[r].x;
        ptx::mma_m16n8k16<T>(sums[r][kTiles - 1], x[0], x[1], x[2], x[3], b.x[0], b.x[1]);
      }
    }
  }
}

/// Adds products with B = columns 8 piece.. of rows row.. row + K - 1 of the tile, which holds B as
/// [k][n].
template <class T, int kDepth, class Tile, int kTiles>
MHLA_DEVICE void multiply(float (&sums)[kTiles][4], const Fragment<kDepth>& rows, Tile tile,
                          std::uint32_t row, std::uint32_t piece, std::uint32_t lane) {
  MHLA_CUDA_UNROLL
  for (std::uint32_t s = 0; s < kDepth / 16; ++s) {
    multiply_step<T>(sums, rows.x[4 * s], rows.x[4 * s + 1], rows.x[4 * s + 2], rows.x[4 * s + 3],
                     tile, row + 16 * s, piece, lane);
  }
  if constexpr (kDepth % 16 != 0) {
    constexpr int kLast = Fragment<kDepth>::kWords - 2;
    const std::uint32_t last_row = row + kDepth - 8 + lane % 8;
    MHLA_CUDA_UNROLL
    for (std::uint32_t j = 0; j < kTiles;
         ++j) {  // 8 rows of B; addresses of threads 8.. are not used
      if (j % 2 == 0) {
        const std::uint32_t tile_piece = piece + j + (j + 1 < kTiles ? lane / 8 % 2 : 0);
        const ptx::Words2 b = ptx::ldmatrix_x2_trans(tile.piece(last_row, tile_piece));
        ptx::mma_m16n8k8<T>(sums[j], rows.x[kLast], rows.x[kLast + 1], b.x[0]);
        if (j + 1 < kTiles) {
          ptx::mma_m16n8k8<T>(sums[j + 1], rows.x[kLast], rows.x[kLast + 1], b.x[1]);
        }
      }
    }
  }
}

/// Adds products with the transpose of rows row.. row + 8 kTiles - 1 of the tile. The tile holds B
/// as [n][k] in columns 0 to K - 1.
template <class T, int kDepth, class Tile, int kTiles>
MHLA_DEVICE void multiply_transposed(float (&sums)[kTiles][4], const Fragment<kDepth>& rows,
                                     Tile tile, std::uint32_t row, std::uint32_t lane) {
  const TileCoord at = transposed_columns_coord(lane);
  MHLA_CUDA_UNROLL
  for (std::uint32_t j = 0; j + 1 < kTiles; j += 2) {
    const std::uint32_t tile_row = row + 8 * j + at.row;
    MHLA_CUDA_UNROLL
    for (std::uint32_t s = 0; s < kDepth / 16; ++s) {
      const ptx::Words4 b = ptx::ldmatrix_x4(tile.piece(tile_row, 2 * s + at.piece));
      const std::uint32_t* const a = rows.x + 4 * s;
      ptx::mma_m16n8k16<T>(sums[j], a[0], a[1], a[2], a[3], b.x[0], b.x[1]);
      ptx::mma_m16n8k16<T>(sums[j + 1], a[0], a[1], a[2], a[3], b.x[2], b.x[3]);
    }
    if constexpr (kDepth % 16 != 0) {
      constexpr int kLast = Fragment<kDepth>::kWords - 2;
      const ptx::Words2 b = ptx::ldmatrix_x2(tile.piece(row + 8 * j + lane % 16, kDepth / 8 - 1));
      ptx::mma_m16n8k8<T>(sums[j], rows.x[kLast], rows.x[kLast + 1], b.x[0]);
      ptx::mma_m16n8k8<T>(sums[j + 1], rows.x[kLast], rows.x[kLast + 1], b.x[1]);
    }
  }
  if constexpr (kTiles % 2 != 0) {
    constexpr int kLastTile = kTiles - 1;
    const std::uint32_t tile_row = row + 8 * kLastTile + lane % 8;
    MHLA_CUDA_UNROLL
    for (std::uint32_t s = 0; s < kDepth / 16; ++s) {
      const ptx::Words2 b = ptx::ldmatrix_x2(tile.piece(tile_row, 2 * s + lane / 8 % 2));
      const std::uint32_t* const a = rows.x + 4 * s;
      ptx::mma_m16n8k16<T>(sums[kLastTile], a[0], a[1], a[2], a[3], b.x[0], b.x[1]);
    }
    if constexpr (kDepth % 16 != 0) {
      constexpr int kLast = Fragment<kDepth>::kWords - 2;
      const ptx::Words2 b = ptx::ldmatrix_x2(tile.piece(tile_row, kDepth / 8 - 1));
      ptx::mma_m16n8k8<T>(sums[kLastTile], rows.x[kLast], rows.x[kLast + 1], b.x[0]);
    }
  }
}

/// Adds products with the same B for several tiles of 16 rows, which share the loads of B.
template <class T, int kDepth, class Tile, int kRowTiles, int kTiles>
MHLA_DEVICE void multiply_transposed(float (&sums)[kRowTiles][kTiles][4],
                                     const Fragment<kDepth> (&rows)[kRowTiles], Tile tile,
                                     std::uint32_t row, std::uint32_t lane) {
  if constexpr (kRowTiles == 1) {
    multiply_transposed<T>(sums[0], rows[0], tile, row, lane);
  } else {
    static_assert(kTiles % 2 == 0 && kDepth % 16 == 0, "four matrices are loaded together");
    const TileCoord at = transposed_columns_coord(lane);
    MHLA_CUDA_UNROLL
    for (std::uint32_t j = 0; j < kTiles; j += 2) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t s = 0; s < kDepth / 16; ++s) {
        const ptx::Words4 b = ptx::ldmatrix_x4(tile.piece(row + 8 * j + at.row, 2 * s + at.piece));
        MHLA_CUDA_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          const std::uint32_t* const a = rows[r].x + 4 * s;
          ptx::mma_m16n8k16<T>(sums[r][j], a[0], a[1], a[2], a[3], b.x[0], b.x[1]);
          ptx::mma_m16n8k16<T>(sums[r][j + 1], a[0], a[1], a[2], a[3], b.x[2], b.x[3]);
        }
      }
    }
  }
}

// -------------------------------------------------------------------------------------------------
// Products of keys with values, by one warp: what 16 tokens add to S = phi(K)^T V and to z.
//
//     sums[16 kRowTiles, 8 kTiles] += phi(K)^T[16 kRowTiles, 16] V[16, 8 kTiles]
//     key_sums[16 kRowTiles]       += phi(K)^T[16 kRowTiles, 16] filled[16]
//
// phi is applied to the operand in registers. S and z use the same phi(K), rounded to T. filled[t]
// is 1 if row t holds a token and 0 if the slot is empty. It is needed because phi of an empty
// row's zeros need not be 0.

/// Loads one number as a B operand of 8 equal columns, from words with the 16 pairs at a shared
/// address.
MHLA_DEVICE ptx::Words2 load_column(std::uint32_t pairs, std::uint32_t lane) {
  return {{ptx::ld_shared(pairs + lane % 4 * 4), ptx::ld_shared(pairs + lane % 4 * 4 + 16)}};
}

/// Adds 16 tokens: rows row.. row + 15 of both tiles. Rows of sums are columns 8 key_piece.. of k,
/// and columns of sums are columns 8 value_piece.. of v. Row lane / 4 of tile t has its sum in
/// key_sums[t][0], and row lane / 4 + 8 in key_sums[t][2].
template <class T, class KeyTile, class ValueTile, class Map, int kRowTiles, int kTiles>
MHLA_DEVICE void multiply_key_values(float (&sums)[kRowTiles][kTiles][4],
                                     float (&key_sums)[kRowTiles][4], KeyTile k, ValueTile v,
                                     ptx::Words2 filled, std::uint32_t row, std::uint32_t key_piece,
                                     std::uint32_t value_piece, const Map& map,
                                     std::uint32_t lane) {
  ptx::Words4 a[kRowTiles];
  MHLA_CUDA_UNROLL
  for (int t = 0; t < kRowTiles; ++t) {
    a[t] = load_transposed_rows(k, row, key_piece + 2 * t, lane);
    apply<T>(map, a[t].x);
    ptx::mma_m16n8k16<T>(key_sums[t], a[t].x[0], a[t].x[1], a[t].x[2], a[t].x[3], filled.x[0],
                         filled.x[1]);
  }
  const TileCoord at = columns_coord(lane);
  MHLA_CUDA_UNROLL
  for (int j = 0; j + 1 < kTiles; j += 2) {
    const ptx::Words4 b = ptx::ldmatrix_x4_trans(v.piece(row + at.row, value_piece + j + at.piece));
    MHLA_CUDA_UNROLL
    for (int t = 0; t < kRowTiles; ++t) {
      const std::uint32_t* const w = a[t].x;
      ptx::mma_m16n8k16<T>(sums[t][j], w[0], w[1], w[2], w[3], b.x[0], b.x[1]);
      ptx::mma_m16n8k16<T>(sums[t][j + 1], w[0], w[1], w[2], w[3], b.x[2], b.x[3]);
    }
  }
  if constexpr (kTiles % 2 != 0) {
    const ptx::Words2 b = ptx::ldmatrix_x2_trans(v.piece(row + at.row, value_piece + kTiles - 1));
    MHLA_CUDA_UNROLL
    for (int t = 0; t < kRowTiles; ++t) {
      const std::uint32_t* const w = a[t].x;
      ptx::mma_m16n8k16<T>(sums[t][kTiles - 1], w[0], w[1], w[2], w[3], b.x[0], b.x[1]);
    }
  }
}

}  // namespace mhla::cuda
