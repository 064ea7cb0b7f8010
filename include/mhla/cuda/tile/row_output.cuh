#pragma once

/// \file
/// Outputs of a warp: 16 rows of sums from registers to rows of tokens in device memory, through a
/// tile of the warp's own, so that a row leaves in stores of 16 bytes side by side.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/tile/row_products.cuh"
#include "mhla/cuda/tile/token_rows.cuh"

namespace mhla::cuda {

/// Writes sums (product.cuh) times a factor for each row, rounded: row r to the row of token
/// tokens(r) from `head` on, unless that is -1. The tile has 16 rows; nothing else touches it from
/// the warp's latest meeting to the one that ends this.
template <class T, class Tile, int kTiles, class Tokens>
MHLA_DEVICE void write_sums(const float (&sums)[kTiles][4], RowPair factors, Tile tile,
                            unsigned char* head, std::int64_t stride, const Tokens& tokens,
                            std::uint32_t lane) {
  static_assert(Tile::kRows == 16 && Tile::kColumns == 8 * kTiles, "the tile holds the sums");
  store_sums<T>(sums, factors.x, factors.x_8, tile, 0, 0, lane);
  ptx::meet_warp();
  write_rows<32>(tile, head, stride, tokens, lane);
  ptx::meet_warp();
}

}  // namespace mhla::cuda
