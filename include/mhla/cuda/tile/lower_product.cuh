#pragma once

/// \file
/// Products of 16 x 16 weights that are zero above the diagonal with 16 rows of values, such that
/// row r of the product has nothing of values later than row r, whatever they are. The matrix unit
/// multiplies them by the zeros, which is nothing but for infinity and NaN: where there are such
/// values, and only there, CUDA cores do the product.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/not_finite.cuh"
#include "mhla/cuda/tile/product.cuh"

namespace mhla::cuda {

/// sums[16, 8 kTiles] += A B with A[r][c] = 0 for c > r, B = rows row.. row + 15 of the tile.
/// All threads of the warp call together.
template <class T, class Tile, int kTiles>
MHLA_DEVICE void multiply_lower(float (&sums)[kTiles][4], const Fragment<16>& weights, Tile tile,
                                std::uint32_t row, std::uint32_t lane);

// -------------------------------------------------------------------------------------------------

namespace detail {

/// True in all threads of the warp if a number of rows row.. row + 15 is infinite or NaN.
template <class T, class Tile>
MHLA_DEVICE bool any_not_finite(Tile tile, std::uint32_t row, std::uint32_t lane) {
  constexpr int kLoads = 16 * Tile::kPieces;
  std::uint32_t bits = 0;
  MHLA_CUDA_UNROLL
  for (int i = 0; i < (kLoads + 31) / 32; ++i) {
    const std::uint32_t index = i * 32 + lane;
    if (kLoads % 32 != 0 && index >= kLoads) break;
    const ptx::Words4 words =
        ptx::load_shared_4(tile.piece(row + index / Tile::kPieces, index % Tile::kPieces));
    MHLA_CUDA_UNROLL
    for (int j = 0; j < 4; ++j) bits |= not_finite_bits<T>(words.x[j]);
  }
  return cuda::any_not_finite(bits);
}

/// multiply_lower by CUDA cores. In round x a thread multiplies the weights that thread lane ^ x
/// holds of the same two rows.
template <class T, class Tile, int kTiles>
MHLA_DEVICE void multiply_lower_exactly(float (&sums)[kTiles][4], const Fragment<16>& weights,
                                        Tile tile, std::uint32_t row, std::uint32_t lane) {
  const std::uint32_t own = lane / 4;
  MHLA_CUDA_LOOP
  for (std::uint32_t x = 0; x < 4; ++x) {
    const std::uint32_t first_key = 2 * (lane % 4 ^ x);
    MHLA_CUDA_LOOP
    for (std::uint32_t c = 0; c < 4; ++c) {  // keys first_key, + 1, + 8, + 9
      const std::uint32_t pair = c < 2 ? weights.x[0] : weights.x[2];
      const std::uint32_t pair_8 = c < 2 ? weights.x[1] : weights.x[3];
      const bool odd = c % 2 != 0;
      const float w = ptx::shuffle_xor(odd ? ptx::high<T>(pair) : ptx::low<T>(pair), x);
      const float w_8 = ptx::shuffle_xor(odd ? ptx::high<T>(pair_8) : ptx::low<T>(pair_8), x);
      const std::uint32_t key = first_key + c / 2 * 8 + c % 2;
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        const std::uint32_t values = ptx::load_shared(tile.piece(row + key, j) + lane % 4 * 4);
        const float low = ptx::low<T>(values);
        const float high = ptx::high<T>(values);
        sums[j][0] += key <= own ? w * low : 0.0f;
        sums[j][1] += key <= own ? w * high : 0.0f;
        sums[j][2] += key <= own + 8 ? w_8 * low : 0.0f;
        sums[j][3] += key <= own + 8 ? w_8 * high : 0.0f;
      }
    }
  }
}

}  // namespace detail

template <class T, class Tile, int kTiles>
MHLA_DEVICE void multiply_lower(float (&sums)[kTiles][4], const Fragment<16>& weights, Tile tile,
                                std::uint32_t row, std::uint32_t lane) {
  if (detail::any_not_finite<T>(tile, row, lane)) {
    detail::multiply_lower_exactly<T>(sums, weights, tile, row, lane);
  } else {
    multiply_step<T>(sums, weights.x[0], weights.x[1], weights.x[2], weights.x[3], tile, row, 0,
                     lane);
  }
}

}  // namespace mhla::cuda
