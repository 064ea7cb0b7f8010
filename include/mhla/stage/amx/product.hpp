#pragma once

/// \file
/// The product of 32 columns that the stages of AMX build on (tiles.hpp).

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/stage/amx/bf16_split.hpp"
#include "mhla/stage/amx/tiles.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Tiles in memory. At step k of the depth, tile `side` of the rows of A, or of the columns of B,
/// starts at tiles + side * side_stride + k * depth_stride.
struct TileOperand {
  const Bf16x2* tiles;
  Index side_stride;
  Index depth_stride;
  bool low;  ///< true if any low part is not 0

  const Bf16x2* at(Index side, Index k) const {
    return tiles + side * side_stride + k * depth_stride;
  }
};

/// The accumulators (tiles 0 to 3) += tiles 4 and 5 of A times tiles 6 and 7 of B.
template <int kRowTiles>
MHLA_INLINE inline void add_products() {
  add_product<0, 4, 6>();
  add_product<1, 4, 7>();
  if constexpr (kRowTiles == 2) {
    add_product<2, 5, 6>();
    add_product<3, 5, 7>();
  }
}

/// Loads the tiles of one or two sides.
template <int kTile, int kSides>
MHLA_INLINE inline void load_sides(const TileOperand& x, Index k, Index part) {
  load_tile<kTile>(x.at(0, k) + part, kTileColumns * static_cast<Index>(sizeof(Bf16x2)));
  if constexpr (kSides == 2) {
    load_tile<kTile + 1>(x.at(1, k) + part, kTileColumns * static_cast<Index>(sizeof(Bf16x2)));
  }
}

/// C (+)= A B, kRowTiles * 16 rows, 32 columns, `depth` steps of high*high, low*high, high*low.
template <int kRowTiles>
void multiply_tiles(Start start, float* c, Index row_stride, const TileOperand& a,
                    const TileOperand& b, Index depth) {
  static_assert(kRowTiles == 1 || kRowTiles == 2);
  const Index row_bytes = row_stride * static_cast<Index>(sizeof(float));
  float* const below = c + kTileRows * row_stride;
  if (start == Start::kTarget) {
    load_tile<0>(c, row_bytes);
    load_tile<1>(c + kTileColumns, row_bytes);
    if constexpr (kRowTiles == 2) {
      load_tile<2>(below, row_bytes);
      load_tile<3>(below + kTileColumns, row_bytes);
    }
  } else {
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
  }
  for (Index k = 0; k < depth; ++k) {
    load_sides<4, kRowTiles>(a, k, 0);
    load_sides<6, 2>(b, k, 0);
    add_products<kRowTiles>();
    if (a.low) {
      load_sides<4, kRowTiles>(a, k, kTileSize);
      add_products<kRowTiles>();
    }
    if (b.low) {
      if (a.low) load_sides<4, kRowTiles>(a, k, 0);
      load_sides<6, 2>(b, k, kTileSize);
      add_products<kRowTiles>();
    }
  }
  store_tile<0>(c, row_bytes);
  store_tile<1>(c + kTileColumns, row_bytes);
  if constexpr (kRowTiles == 2) {
    store_tile<2>(below, row_bytes);
    store_tile<3>(below + kTileColumns, row_bytes);
  }
}

/// C (+)= A B for row_tiles * 16 rows and column_tiles * 16 columns, an even number of tiles.
inline void multiply_tiles(Start start, float* c, Index row_stride, const TileOperand& a,
                           const TileOperand& b, Index row_tiles, Index column_tiles, Index depth) {
  for (Index j = 0; j < column_tiles; j += 2) {
    const TileOperand columns{b.at(j, 0), b.side_stride, b.depth_stride, b.low};
    for (Index i = 0; i < row_tiles; i += 2) {
      const TileOperand rows{a.at(i, 0), a.side_stride, a.depth_stride, a.low};
      float* const target = c + i * kTileRows * row_stride + j * kTileColumns;
      if (i + 1 < row_tiles) {
        multiply_tiles<2>(start, target, row_stride, rows, columns, depth);
      } else {
        multiply_tiles<1>(start, target, row_stride, rows, columns, depth);
      }
    }
  }
}

/// Packs x[0..count), count <= kStepDepth, and zeros after it as row r of a tile pair.
/// \return 0 if all low parts are 0.
inline Bf16x2 pack_row(const float* x, Index count, Bf16x2* tile, Index r) {
  float padded[kStepDepth];
  if (count < kStepDepth) {
    std::fill(std::copy_n(x, std::max<Index>(count, 0), padded), padded + kStepDepth, 0.0f);
    x = padded;
  }
  return split_row(x, x + kTileColumns, tile + r * kTileColumns,
                   tile + kTileSize + r * kTileColumns);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
