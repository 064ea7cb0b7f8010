#pragma once

/// \file
/// Rotary embedding of features in registers, after phi. Each pair (2 j, 2 j + 1) of a token's D
/// features rotates by its angle t, in float:
///
///     y_2j     = x_2j cos t - x_2j+1 sin t
///     y_2j+1   = x_2j+1 cos t + x_2j sin t
///
/// and is rounded once more. The order is RotaryPairs::kInterleaved of layer/rotary_table.hpp.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Cosine and sine of each pair of the tokens of a sequence, the same for all heads.
struct RotaryAngles {
  const float* data;    ///< [N, D], aligned to 16 bytes
  std::int32_t stride;  ///< floats from one token to the next, a multiple of 4

  /// Row of a token. For an absent token (-1) it is another token's row, so that loads stay valid.
  MHLA_HOST_DEVICE constexpr const float* row(std::int32_t token) const {
    return data + std::int64_t{token < 0 ? 0 : token} * stride;
  }
  bool operator==(const RotaryAngles&) const = default;
};

/// Rotates a pair by its cosine and sine.
template <class T>
MHLA_DEVICE std::uint32_t rotated(std::uint32_t pair, float cos, float sin) {
  const float x = ptx::low<T>(pair), y = ptx::high<T>(pair);
  return ptx::pack<T>(x * cos - y * sin, y * cos + x * sin);
}

/// Cosines and sines of the pairs of a piece of 8 features.
struct PieceAngles {
  ptx::Words2 turns[4];

  static MHLA_DEVICE PieceAngles load(const float* from) {
    PieceAngles angles;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) angles.turns[i] = ptx::ld_global_nc_v2(from + 2 * i);
    return angles;
  }
  template <class T>
  MHLA_DEVICE void rotate(ptx::Words4& words) const {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      words.x[i] = rotated<T>(words.x[i], as_float(turns[i].x[0]), as_float(turns[i].x[1]));
    }
  }
};

/// Rotates 16 rows of features. The thread holds parts of two tokens.
template <class T, int D>
MHLA_DEVICE void rotate(Fragment<D>& rows, const RotaryAngles& angles, TokenPair tokens,
                        std::uint32_t lane) {
  const float* const turns = angles.row(tokens.token) + lane % 4 * 2;
  const float* const turns_8 = angles.row(tokens.token_8) + lane % 4 * 2;
  MHLA_CUDA_UNROLL
  for (int j = 0; j < D / 8; ++j) {
    const ptx::Words2 turn = ptx::ld_global_nc_v2(turns + 8 * j);
    const ptx::Words2 turn_8 = ptx::ld_global_nc_v2(turns_8 + 8 * j);
    rows.x[2 * j] = rotated<T>(rows.x[2 * j], as_float(turn.x[0]), as_float(turn.x[1]));
    rows.x[2 * j + 1] = rotated<T>(rows.x[2 * j + 1], as_float(turn_8.x[0]), as_float(turn_8.x[1]));
  }
}

/// Rotates features `feature`.. feature + 15 of tokens(slot).. tokens(slot + 15), an A operand with
/// a row per feature (load_transposed_rows). The other feature of a pair is in a neighbouring row
/// of the same column, which thread lane ^ 4 holds. All threads of the warp call together.
template <class T, class Tokens>
MHLA_DEVICE void rotate_transposed(ptx::Words4& a, const RotaryAngles& angles, std::uint32_t slot,
                                   std::uint32_t feature, const Tokens& tokens,
                                   std::uint32_t lane) {
  const std::uint32_t pair_feature =
      feature + lane / 8 * 2;  // first feature of the pair in words 0 and 2
  const float sign = lane / 4 % 2 == 0 ? -1.0f : 1.0f;
  const auto first = static_cast<std::int32_t>(slot + lane % 4 * 2);
  MHLA_CUDA_UNROLL
  for (int h = 0; h < 2; ++h) {
    const float* const row = angles.row(tokens(first + 8 * h)) + pair_feature;
    const float* const next = angles.row(tokens(first + 8 * h + 1)) + pair_feature;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      std::uint32_t& x = a.x[2 * h + i];
      const std::uint32_t other = ptx::shfl_idx(x, lane ^ 4);
      const ptx::Words2 turn = ptx::ld_global_nc_v2(row + 8 * i);
      const ptx::Words2 turn_next = ptx::ld_global_nc_v2(next + 8 * i);
      x = ptx::pack<T>(
          ptx::low<T>(x) * as_float(turn.x[0]) + ptx::low<T>(other) * (sign * as_float(turn.x[1])),
          ptx::high<T>(x) * as_float(turn_next.x[0]) +
              ptx::high<T>(other) * (sign * as_float(turn_next.x[1])));
    }
  }
}

/// Rotates the pieces that copy_rows<kThreads>(tile, ..., tokens, thread) copied, in place.
template <class T, int kThreads, class Tile, class Tokens>
MHLA_DEVICE void rotate_copied(const RotaryAngles& angles, Tile tile, const Tokens& tokens,
                               std::uint32_t thread) {
  constexpr std::uint32_t kCopies = Tile::kRows * Tile::kPieces;
  static_assert(kCopies % kThreads == 0, "each thread has as many pieces");
  MHLA_CUDA_LOOP
  for (std::uint32_t index = thread; index < kCopies; index += kThreads) {
    const std::uint32_t row = index / Tile::kPieces, piece = index % Tile::kPieces;
    const float* const piece_angles =
        angles.row(tokens(static_cast<std::int32_t>(row))) + 8 * piece;
    ptx::Words4 words = ptx::ld_shared_v4(tile.piece(row, piece));
    PieceAngles::load(piece_angles).template rotate<T>(words);
    ptx::st_shared_v4(tile.piece(row, piece), words);
  }
}

}  // namespace mhla::cuda
