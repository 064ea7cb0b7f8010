#pragma once

/// \file
/// Sizes that follow from a width: the number of columns of a tensor's rows. Kernels take them from
/// here instead of testing for a particular width.

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace mhla::cuda {

/// \tparam kColumns_  a multiple of 8
template <int kColumns_>
struct Width {
  static constexpr int kColumns = kColumns_;
  static_assert(kColumns % 8 == 0, "rows have whole pieces of 16 bytes");

  // Rows in shared memory, in panels of kPanelColumns columns.
  static constexpr int kPieces = kColumns / 8;                 ///< pieces of 16 bytes per row
  static constexpr int kPanelColumns = box_columns(kColumns);  ///< 64, or all columns
  static constexpr int kPanelCount = kColumns / kPanelColumns;
  static constexpr bool kPanels = kPanelColumns == 64;     ///< tensor copies and wgmma swizzle rows
  static constexpr int kRowBytes = 2 * kPanelColumns;      ///< of a panel
  static constexpr int kAlignment = kPanels ? 1024 : 128;  ///< of a tile that tensor copies fill
  /// Pieces that change places: the largest power of two that divides the pieces of a panel's row,
  /// at most 8. Piece j of row r is in place j ^ (r / (8 / kSwizzle) % kSwizzle).
  static constexpr int kSwizzle = (kPanelColumns / 8 | 8) & -(kPanelColumns / 8 | 8);

  // S has a row per column of the keys.
  static constexpr int kRowTiles = (kColumns + 15) / 16;     ///< tiles of 16 rows
  static constexpr bool kWholeTiles = kColumns % 16 == 0;    ///< the last tile has 16 rows
  static constexpr int kWarpTiles = kRowTiles > 5 ? 2 : 1;   ///< tiles per warp
  static constexpr int kTileWarps = kRowTiles / kWarpTiles;  ///< warps that share the tiles
  /// Teams of warps that summarise different blocks. A warp of a team has one tile.
  static constexpr int kTeams = kWarpTiles > 1 ? 1 : 16 / kRowTiles;

  // Wider tensors are processed in parts.
  static constexpr int kPart = kColumns > 128 ? kColumns / 2 : kColumns;  ///< columns of a part
  static constexpr int kParts = kColumns / kPart;
};

}  // namespace mhla::cuda
