#pragma once

/// \file
/// Registers of a warp that hold 16 rows of a tile, and the addresses that ldmatrix needs for them.
///
/// Let g = lane / 4 and p = 2 (lane % 4).
/// Word 2 j + i of Fragment holds elements (g + 8 i, 8 j + p) and (g + 8 i, 8 j + p + 1). Words 4
/// s.. 4 s + 3 are the A operand of the product over columns 16 s.. 16 s + 15 (ptx/mma.cuh).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace mhla::cuda {

/// 16 rows of kColumns columns, a multiple of 8.
template <int kColumns_>
struct Fragment {
  static constexpr int kColumns = kColumns_;
  static constexpr int kWords = kColumns / 4;
  std::uint32_t x[kWords];
};

/// A row of a tile and a piece of 16 bytes of that row.
struct TileCoord {
  std::uint32_t row;
  std::uint32_t piece;
};

/// Address that thread `lane` passes to ldmatrix to load an A operand. The four matrices are rows
/// 0-7 and 8-15, then both again one piece to the right, as words of the operand.
MHLA_HOST_DEVICE constexpr TileCoord rows_coord(std::uint32_t lane) {
  return {lane % 16, lane / 16};
}
/// Address for a transposed load of the A operand of the transposed 16 x 16 part of a tile.
MHLA_HOST_DEVICE constexpr TileCoord transposed_rows_coord(std::uint32_t lane) {
  return {lane / 16 * 8 + lane % 8, lane / 8 % 2};
}
/// Address for a transposed load of two B operands of 8 columns each from a tile [16 k][16 n].
MHLA_HOST_DEVICE constexpr TileCoord columns_coord(std::uint32_t lane) {
  return {lane % 16, lane / 16};
}
/// Address for a load of two B operands of 8 columns each from a tile [16 n][16 k].
MHLA_HOST_DEVICE constexpr TileCoord transposed_columns_coord(std::uint32_t lane) {
  return {lane / 16 * 8 + lane % 8, lane / 8 % 2};
}

/// Loads rows row.. row + 15 of a tile, all columns.
template <class Tile>
MHLA_DEVICE Fragment<Tile::kColumns> load_rows(Tile tile, std::uint32_t row, std::uint32_t lane) {
  Fragment<Tile::kColumns> rows;
  const TileCoord at = rows_coord(lane);
  MHLA_CUDA_UNROLL
  for (int s = 0; s < Tile::kColumns / 16; ++s) {
    const ptx::Words4 w = ptx::ldmatrix_x4(tile.piece(row + at.row, 2 * s + at.piece));
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) rows.x[4 * s + i] = w.x[i];
  }
  if constexpr (Tile::kColumns % 16 != 0) {
    const ptx::Words2 w = ptx::ldmatrix_x2(tile.piece(row + at.row, Tile::kPieces - 1));
    rows.x[Fragment<Tile::kColumns>::kWords - 2] = w.x[0];
    rows.x[Fragment<Tile::kColumns>::kWords - 1] = w.x[1];
  }
  return rows;
}

/// Loads the A operand for products with the transpose of rows row.. row + 15 of a tile. Its 16
/// rows are the columns of pieces `piece` and `piece` + 1. After the last piece the last one is
/// read again.
template <class Tile>
MHLA_DEVICE ptx::Words4 load_transposed_rows(Tile tile, std::uint32_t row, std::uint32_t piece,
                                             std::uint32_t lane) {
  const TileCoord at = transposed_rows_coord(lane);
  std::uint32_t clamped = piece + at.piece;
  if constexpr (Tile::kPieces % 2 != 0)
    clamped = clamped < Tile::kPieces ? clamped : Tile::kPieces - 1;
  return ptx::ldmatrix_x4_trans(tile.piece(row + at.row, clamped));
}

/// Applies phi to every element.
template <class T, int kColumns>
MHLA_DEVICE void apply(const FeatureMap& map, Fragment<kColumns>& rows) {
  apply<T>(map, rows.x);
}

/// Rounds sums of a product (ptx/mma.cuh) to the next A operand: 16 rows of 8 kTiles columns.
template <class T, int kTiles>
MHLA_DEVICE Fragment<8 * kTiles> rounded(const float (&sums)[kTiles][4]) {
  Fragment<8 * kTiles> rows;
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    rows.x[2 * j] = ptx::pack<T>(sums[j][0], sums[j][1]);
    rows.x[2 * j + 1] = ptx::pack<T>(sums[j][2], sums[j][3]);
  }
  return rows;
}

// -------------------------------------------------------------------------------------------------
// Rows of a box in registers (tile/fragment.cuh). A box has panels of 64 columns at multiples of
// 1024, in the swizzled order of ptx/tensor_copy.cuh. A box of another width is not swizzled.

/// Panel of a box of up to 256 rows. Only the place of a piece inside a panel is fixed.
using BoxPanel = SharedTile<256, 64>;

/// Loads rows row.. row + 15 of kColumns columns. Past the end of the box the last row is read
/// again. `rows` is the number of rows of the box, `panel_bytes` the distance of its panels.
template <int kColumns>
MHLA_DEVICE Fragment<kColumns> load_box_rows(std::uint32_t box, std::uint32_t panel_bytes,
                                             std::int32_t row, std::int32_t rows,
                                             std::uint32_t lane) {
  const TileCoord at = rows_coord(lane);
  const std::int32_t wanted = row + static_cast<std::int32_t>(at.row);
  const auto clamped = static_cast<std::uint32_t>(wanted < rows ? wanted : rows - 1);
  using Panel = SharedTile<256, box_columns(kColumns)>;
  Fragment<kColumns> fragment;
  MHLA_CUDA_UNROLL
  for (int s = 0; s < kColumns / 16; ++s) {
    const Panel panel{box + s / 4 * panel_bytes};
    const ptx::Words4 w = ptx::ldmatrix_x4(panel.piece(clamped, s % 4 * 2 + at.piece));
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) fragment.x[4 * s + i] = w.x[i];
  }
  if constexpr (kColumns % 16 != 0) {
    const ptx::Words2 w = ptx::ldmatrix_x2(Panel{box}.piece(clamped, Panel::kPieces - 1));
    fragment.x[Fragment<kColumns>::kWords - 2] = w.x[0];
    fragment.x[Fragment<kColumns>::kWords - 1] = w.x[1];
  }
  return fragment;
}

}  // namespace mhla::cuda
