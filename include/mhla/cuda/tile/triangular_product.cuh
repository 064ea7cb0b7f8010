#pragma once

/// \file
/// Products of factors that are zero above the diagonal. Values that would be multiplied by those
/// zeros do not change the result, even if they are infinite or NaN.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/product.cuh"

namespace mhla::cuda {

/// Detects numbers that are infinite or NaN: their products with 0 are not 0.
template <class T>
struct FiniteCheck {
  std::uint32_t zeros[4] = {};  // pairs of sums of products, independent of each other

  MHLA_DEVICE void add(const ptx::Words4& pairs) {
    MHLA_CUDA_UNROLL
    for (int j = 0; j < 4; ++j) zeros[j] = ptx::add_zero_times_x2<T>(zeros[j], pairs.x[j]);
  }
  /// Returns true if any thread of the warp has added such a number. All threads call together.
  MHLA_DEVICE bool any_not_finite() const {
    return ptx::vote_any((zeros[0] | zeros[1] | zeros[2] | zeros[3]) != 0);
  }
};

// -------------------------------------------------------------------------------------------------
// Products of 16 x 16 weights that are zero above the diagonal with 16 rows of values. Row r of the
// product must not depend on values later than row r. Tensor cores multiply those by zeros, which
// is exact unless they are infinite or NaN. Only if a value is infinite or NaN, CUDA cores compute
// the product.

/// Replaces the weights above the diagonal by zeros.
MHLA_HOST_DEVICE constexpr Fragment<16> lower_triangle(const Fragment<16>& weights,
                                                       std::uint32_t lane);

/// Adds sums[16, 8 kTiles] += A B with A[r][c] = 0 for c > r, B = rows row.. row + 15 of the tile.
/// All threads of the warp call together.
template <class T, class Tile, int kTiles>
MHLA_DEVICE void multiply_lower(float (&sums)[kTiles][4], const Fragment<16>& weights, Tile tile,
                                std::uint32_t row, std::uint32_t lane);

// -------------------------------------------------------------------------------------------------

namespace detail {

/// Returns the first `count` numbers of a pair, and zeros for the others.
MHLA_HOST_DEVICE constexpr std::uint32_t first_of_pair(std::uint32_t pair, std::int32_t count) {
  return count >= 2 ? pair : count == 1 ? pair & 0xFFFFu : 0;
}

/// Returns true in all threads of the warp if a number of rows row.. row + 15 is infinite or NaN.
template <class T, class Tile>
MHLA_DEVICE bool any_not_finite(Tile tile, std::uint32_t row, std::uint32_t lane) {
  constexpr int kLoads = 16 * Tile::kPieces;
  FiniteCheck<T> check;
  MHLA_CUDA_UNROLL
  for (int i = 0; i < (kLoads + 31) / 32; ++i) {
    const std::uint32_t index = i * 32 + lane;
    if (kLoads % 32 != 0 && index >= kLoads) break;
    check.add(ptx::ld_shared_v4(tile.piece(row + index / Tile::kPieces, index % Tile::kPieces)));
  }
  return check.any_not_finite();
}

/// Computes multiply_lower by CUDA cores. In round x a thread multiplies the weights that thread
/// lane ^ x holds of the same two rows.
template <class T, class Tile, int kTiles>
MHLA_DEVICE void multiply_lower_exactly(float (&sums)[kTiles][4], const Fragment<16>& weights,
                                        Tile tile, std::uint32_t row, std::uint32_t lane) {
  const std::uint32_t lane_row = lane / 4;
  MHLA_CUDA_LOOP
  for (std::uint32_t x = 0; x < 4; ++x) {
    const std::uint32_t first_key = 2 * (lane % 4 ^ x);
    MHLA_CUDA_LOOP
    for (std::uint32_t c = 0; c < 4; ++c) {  // keys first_key, + 1, + 8, + 9
      const std::uint32_t pair = c < 2 ? weights.x[0] : weights.x[2];
      const std::uint32_t pair_8 = c < 2 ? weights.x[1] : weights.x[3];
      const bool odd = c % 2 != 0;
      const float w = ptx::shfl_bfly(odd ? ptx::high<T>(pair) : ptx::low<T>(pair), x);
      const float w_8 = ptx::shfl_bfly(odd ? ptx::high<T>(pair_8) : ptx::low<T>(pair_8), x);
      const std::uint32_t key = first_key + c / 2 * 8 + c % 2;
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        const std::uint32_t values = ptx::ld_shared(tile.piece(row + key, j) + lane % 4 * 4);
        const float low = ptx::low<T>(values);
        const float high = ptx::high<T>(values);
        sums[j][0] += key <= lane_row ? w * low : 0.0f;
        sums[j][1] += key <= lane_row ? w * high : 0.0f;
        sums[j][2] += key <= lane_row + 8 ? w_8 * low : 0.0f;
        sums[j][3] += key <= lane_row + 8 ? w_8 * high : 0.0f;
      }
    }
  }
}

}  // namespace detail

MHLA_HOST_DEVICE constexpr Fragment<16> lower_triangle(const Fragment<16>& weights,
                                                       std::uint32_t lane) {
  const std::int32_t count =  // of columns up to the diagonal, from the thread's first on
      static_cast<std::int32_t>(lane / 4 + 1) - static_cast<std::int32_t>(lane % 4 * 2);
  return {{detail::first_of_pair(weights.x[0], count), weights.x[1], 0,
           detail::first_of_pair(weights.x[3], count)}};
}

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

// -------------------------------------------------------------------------------------------------
// Products in registers of 16 x 16 factors that are zero on and above the diagonal,
//
//     sums[16, 8 kTiles] += (high + low) (b[0] + b[1])     without low b[1]; b[1] is there or not
//
// Row r of the product must not depend on rows r.. of b. Plain products multiply those rows by
// zeros, which is exact unless they are infinite or NaN.

/// Returns true in all threads of the warp if a number of B operands is infinite or NaN.
template <class T, int kParts, int kLoads>
MHLA_DEVICE bool any_not_finite(const ptx::Words4 (&b)[kParts][kLoads]);

/// Adds a product for each row r, with zeros in place of rows r.. of b. This is sixteen times the
/// work of plain products, with the same bits if b is finite. b[part][j] are the B operands of
/// columns 16 j.. 16 j + 15; `high` and `low` are A operands.
template <class T, int kTiles, int kParts, int kLoads>
MHLA_DEVICE void multiply_earlier(float (&sums)[kTiles][4], const ptx::Words4& high,
                                  const ptx::Words4& low, const ptx::Words4 (&b)[kParts][kLoads],
                                  std::uint32_t lane);

// -------------------------------------------------------------------------------------------------

template <class T, int kParts, int kLoads>
MHLA_DEVICE bool any_not_finite(const ptx::Words4 (&b)[kParts][kLoads]) {
  FiniteCheck<T> check;
  MHLA_CUDA_UNROLL
  for (int part = 0; part < kParts; ++part) {
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kLoads; ++j) check.add(b[part][j]);
  }
  return check.any_not_finite();
}

template <class T, int kTiles, int kParts, int kLoads>
MHLA_DEVICE void multiply_earlier(float (&sums)[kTiles][4], const ptx::Words4& high,
                                  const ptx::Words4& low, const ptx::Words4 (&b)[kParts][kLoads],
                                  std::uint32_t lane) {
  static_assert(kTiles == 2 * kLoads, "two tiles of 8 columns are loaded together");
  const auto sum_row = static_cast<std::int32_t>(lane / 4);  // and the row 8 further on
  const auto b_row = static_cast<std::int32_t>(lane % 4 * 2);
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    MHLA_CUDA_LOOP
    for (std::int32_t r = 0; r < 16; ++r) {
      float products[4] = {sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
      const auto add = [&](const ptx::Words4& a, int part) {
        const std::uint32_t* const words = b[part][j / 2].x + j % 2 * 2;
        ptx::mma_m16n8k16<T>(products, a.x[0], a.x[1], a.x[2], a.x[3],
                             detail::first_of_pair(words[0], r - b_row),
                             detail::first_of_pair(words[1], r - b_row - 8));
      };
      add(high, 0);
      add(low, 0);
      if constexpr (kParts == 2) add(high, 1);
      MHLA_CUDA_UNROLL
      for (int c = 0; c < 4; ++c) {
        if (sum_row + c / 2 * 8 == r) sums[j][c] = products[c];
      }
    }
  }
}

}  // namespace mhla::cuda
