#pragma once

/// \file
/// Sums of products of a group of four warps (ptx/wgmma.cuh) on their way to device memory: each
/// warp rounds its 16 rows, 64 columns at a time, into a tile of its own, and writes rows from
/// there. No other warp takes part.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/row_products.cuh"
#include "mhla/cuda/tile/shared_tile.cuh"
#include "mhla/cuda/tile/token_rows.cuh"

namespace mhla::cuda {

/// Where a warp's sums pass through.
using WarpTile = SharedTile<16, 64>;

/// Stores columns 64 panel.. of a warp's sums, times a factor for each of a thread's two rows and
/// rounded.
template <class T, int kCount>
MHLA_DEVICE void store_panel(const float (&sums)[kCount], int panel, RowPair factors, WarpTile tile,
                             std::uint32_t lane) {
  const std::uint32_t row = lane / 4;
  const std::uint32_t column = lane % 4 * 4;  // in bytes
  MHLA_CUDA_UNROLL
  for (int j = 0; j < 8; ++j) {
    const float* const c = sums + 32 * panel + 4 * j;
    ptx::store_shared(tile.piece(row, j) + column,
                      ptx::pack<T>(c[0] * factors.x, c[1] * factors.x));
    ptx::store_shared(tile.piece(row + 8, j) + column,
                      ptx::pack<T>(c[2] * factors.x_8, c[3] * factors.x_8));
  }
}

/// Writes a warp's sums, all kCount / 32 panels, as rows of tokens(0).. tokens(15), but those where
/// that is -1. `begin` is the row of token 0, its rows `stride` bytes apart.
template <class T, int kCount, class Tokens>
MHLA_DEVICE void write_sums(const float (&sums)[kCount], RowPair factors, WarpTile tile,
                            unsigned char* begin, std::int64_t stride, const Tokens& tokens,
                            std::uint32_t lane) {
  MHLA_CUDA_UNROLL
  for (int panel = 0; panel < kCount / 32; ++panel) {
    store_panel<T>(sums, panel, factors, tile, lane);
    ptx::meet_warp();
    write_rows<32>(tile, begin + panel * 128, stride, tokens, lane);
    ptx::meet_warp();
  }
}

/// Multiplies sums.
template <int kCount>
MHLA_DEVICE void scale_sums(float (&sums)[kCount], float by) {
  MHLA_CUDA_UNROLL
  for (float& x : sums) x *= by;
}

/// Replaces sums by what rounding them to T leaves.
template <class T, int kCount>
MHLA_DEVICE void keep_rest_of_sums(float (&sums)[kCount]) {
  MHLA_CUDA_UNROLL
  for (int i = 0; i < kCount; i += 2) {
    const std::uint32_t high = ptx::pack<T>(sums[i], sums[i + 1]);
    sums[i] -= ptx::low<T>(high);
    sums[i + 1] -= ptx::high<T>(high);
  }
}

}  // namespace mhla::cuda
