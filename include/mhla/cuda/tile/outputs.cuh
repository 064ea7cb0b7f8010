#pragma once

/// \file
/// Epilogue of products: sums are scaled, split into two parts, rounded, written as rows.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

// -------------------------------------------------------------------------------------------------
// Floats as sums of two 16-bit numbers: x = high + low, high = T(x), low = T(x - high).
//
// The sum high + low is within 2^-17 |x| of x for bfloat16 and 2^-23 |x| + 2^-25 for half. The
// difference x - high is at most half the distance of numbers of T around x, and low rounds it. If
// x overflows T, or is not finite, low is not finite either.

/// Pairs of the high and of the low parts of two numbers.
struct Parts {
  std::uint32_t high;
  std::uint32_t low;
};

template <class T>
MHLA_DEVICE Parts parts_of(float x, float y) {
  const std::uint32_t high = ptx::pack<T>(x, y);
  return {high, ptx::pack<T>(x - ptx::low<T>(high), y - ptx::high<T>(high))};
}

/// Multiplies sums of a product.
template <int kTiles>
MHLA_DEVICE void scale_sums(float (&sums)[kTiles][4], float by) {
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    MHLA_CUDA_UNROLL
    for (float& x : sums[j]) x *= by;
  }
}

/// Replaces sums of a product (product.cuh) by their rounding errors in T.
template <class T, int kTiles>
MHLA_DEVICE void keep_rest(float (&sums)[kTiles][4]) {
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const std::uint32_t high = ptx::pack<T>(sums[j][i], sums[j][i + 1]);
      sums[j][i] -= ptx::low<T>(high);
      sums[j][i + 1] -= ptx::high<T>(high);
    }
  }
}

// -------------------------------------------------------------------------------------------------
// Outputs of a warp: 16 rows of sums go from registers through shared memory to rows of tokens in
// device memory. Shared memory holds a tile per warp or a box. Rows leave a tile in adjacent stores
// of 16 bytes or by tensor copies. A box leaves by a tensor copy.

/// Staging tile of a warp's sums.
using WarpTile = SharedTile<16, 64>;

/// Stores kCount tiles of sums of a product (product.cuh), from tile `first` on. They are
/// multiplied by a factor for each of the thread's two rows, and rounded. They become rows row..
/// row + 15 and columns 8 piece.. of a tile.
template <class T, int kCount, class Tile, int kTiles>
MHLA_DEVICE void store_sums(const float (&sums)[kTiles][4], int first, RowPair factors, Tile tile,
                            std::uint32_t row, std::uint32_t piece, std::uint32_t lane) {
  const std::uint32_t column = lane % 4 * 4;  // in bytes
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kCount; ++j) {
    const float(&c)[4] = sums[first + j];
    ptx::st_shared(tile.piece(row + lane / 4, piece + j) + column,
                   ptx::pack<T>(c[0] * factors.x, c[1] * factors.x));
    ptx::st_shared(tile.piece(row + lane / 4 + 8, piece + j) + column,
                   ptx::pack<T>(c[2] * factors.x_8, c[3] * factors.x_8));
  }
}

/// Writes a warp's sums, multiplied by a factor per row and rounded: row r to the row of token
/// tokens(r) from `head` on, unless that is -1. They pass through the tile of 16 rows, as many
/// columns at a time as it has. No other warp may touch the tile between the warp's last barrier
/// before the call and the one that ends it.
template <class T, class Tile, int kTiles, class Tokens>
MHLA_DEVICE void write_sums(const float (&sums)[kTiles][4], RowPair factors, Tile tile,
                            unsigned char* head, std::int64_t stride, const Tokens& tokens,
                            std::uint32_t lane) {
  static_assert(Tile::kRows == 16 && kTiles % Tile::kPieces == 0, "sums pass in whole tiles");
  MHLA_CUDA_UNROLL
  for (int first = 0; first < kTiles; first += Tile::kPieces) {
    store_sums<T, Tile::kPieces>(sums, first, factors, tile, 0, 0, lane);
    ptx::bar_warp_sync();
    write_rows<32>(tile, head + 16 * first, stride, tokens, lane);
    ptx::bar_warp_sync();
  }
}

/// Stores a warp's sums, multiplied by a factor per row and rounded, by tensor copies of 64 columns
/// at a time from the tile. One thread calls store(first), which starts to store the columns from
/// `first` on. That thread waits for its earlier stores, and at the end for the last one.
template <class T, int kTiles, class Store>
MHLA_DEVICE void store_tiles(const float (&sums)[kTiles][4], RowPair factors, WarpTile tile,
                             std::uint32_t lane, const Store& store) {
  MHLA_CUDA_UNROLL
  for (int first = 0; first < kTiles; first += WarpTile::kPieces) {
    if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
    ptx::bar_warp_sync();
    store_sums<T, WarpTile::kPieces>(sums, first, factors, tile, 0, 0, lane);
    ptx::fence_proxy_async();
    ptx::bar_warp_sync();
    if (lane == 0) {
      store(8 * first);
      ptx::cp_async_bulk_commit_group();
    }
  }
}

/// Stores a warp's sums, multiplied by a factor per row and rounded, in a box (fragment.cuh). They
/// become rows row.. row + 15 and 8 kTiles columns from column `column`, a multiple of 64, on. Rows
/// from `rows` on are left out.
template <class T, int kTiles>
MHLA_DEVICE void store_box_rows(const float (&sums)[kTiles][4], RowPair factors, std::uint32_t box,
                                std::uint32_t panel_bytes, int column, std::int32_t row,
                                std::int32_t rows, std::uint32_t lane) {
  using Panel = SharedTile<256, box_columns(8 * kTiles)>;
  const std::int32_t lane_row = row + static_cast<std::int32_t>(lane / 4);
  const bool filled = lane_row < rows, filled_8 = lane_row + 8 < rows;
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    const int piece = column / 8 + j;
    const Panel panel{box + static_cast<std::uint32_t>(piece / Panel::kPieces) * panel_bytes};
    const std::uint32_t at =
        panel.piece(static_cast<std::uint32_t>(lane_row), piece % Panel::kPieces) + lane % 4 * 4;
    const float(&c)[4] = sums[j];
    if (filled) ptx::st_shared(at, ptx::pack<T>(c[0] * factors.x, c[1] * factors.x));
    if (filled_8) {
      ptx::st_shared(at + 16 * Panel::kColumns,
                     ptx::pack<T>(c[2] * factors.x_8, c[3] * factors.x_8));
    }
  }
}

}  // namespace mhla::cuda
