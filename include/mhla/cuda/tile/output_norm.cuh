#pragma once

/// \file
/// Outputs that are normalised and gated before they are stored, separately for each row of a head:
///
///     y = o gain / sqrt(mean of o^2 + eps)                      normed
///     y = (the normed y) silu(gate),  silu(g) = g / (1 + e^-g)  gated too
///
/// in float, from sums that a warp holds. layer/rms_norm.hpp is the same function on the CPU.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Adds the squares of the thread's elements of both rows, multiplied by the row's factor.
template <int kTiles>
MHLA_DEVICE void add_squares(RowPair& squares, const float (&sums)[kTiles][4], RowPair factors) {
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float o = sums[j][i] * factors.x, o_8 = sums[j][i + 2] * factors.x_8;
      squares.x += o * o;
      squares.x_8 += o_8 * o_8;
    }
  }
}

/// Adds the sums of two warpgroups that have different columns of the same 64 rows; both get the
/// result. Their 256 threads call together and synchronise at barrier 1. The numbers pass through
/// 512 bytes at `shared`, a multiple of 512.
MHLA_DEVICE RowPair over_warpgroups(RowPair sums, std::uint32_t shared, std::uint32_t warp,
                                    std::uint32_t lane) {
  const std::uint32_t to = shared + warp * 64 + lane / 4 * 4, from = to ^ 256;
  if (lane % 4 == 0) {
    ptx::st_shared_f32(to, sums.x);
    ptx::st_shared_f32(to + 32, sums.x_8);
  }
  ptx::bar_sync(1, 256);
  sums.x += ptx::ld_shared_f32(from);
  sums.x_8 += ptx::ld_shared_f32(from + 32);
  ptx::bar_sync(1, 256);
  return sums;
}

/// g / (1 + 2^(-g log2(e))).
MHLA_DEVICE float silu(float g) {
  return g * ptx::rcp_approx(1 + ptx::ex2_approx(g * -1.442695041f));
}

struct OutputNorm {
  bool normed;
  bool gated;
  float eps;
  const float* gain;      ///< [E], aligned to 8 bytes
  ConstTokenTensor gate;  ///< [B, N, H, E]

  /// Row factors that turn sums into normalised outputs. `factors` turn them into outputs, and
  /// `squares` are the rows' sums of squares over all kWidth columns.
  template <int kWidth>
  MHLA_DEVICE RowPair scaled(RowPair factors, RowPair squares) const {
    return {factors.x * ptx::rsqrt_approx(squares.x * (1.0f / kWidth) + eps),
            factors.x_8 * ptx::rsqrt_approx(squares.x_8 * (1.0f / kWidth) + eps)};
  }

  /// Turns sums of columns `column`.. into outputs of two tokens of a head, before rounding.
  template <class T, int kTiles>
  MHLA_DEVICE void apply(float (&sums)[kTiles][4], RowPair factors, int column, BatchHead head,
                         TokenPair tokens, std::uint32_t lane) const {
    const int first = column + static_cast<int>(lane % 4 * 2);
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      const ptx::Words2 gains = ptx::ld_global_nc_v2(gain + first + 8 * j);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 2; ++i) {
        sums[j][i] *= factors.x * as_float(gains.x[i]);
        sums[j][i + 2] *= factors.x_8 * as_float(gains.x[i]);
      }
    }
    if (!gated) return;
    const unsigned char* const rows = gate.head(head) + kPieceBytes<T> / 8 * first;
    multiply_gate<T, 0>(sums, rows, tokens.token);
    multiply_gate<T, 2>(sums, rows, tokens.token_8);
  }

 private:
  /// Processes one of the two rows.
  template <class T, int kFirst, int kTiles>
  MHLA_DEVICE void multiply_gate(float (&sums)[kTiles][4], const unsigned char* rows,
                                 std::int32_t token) const {
    if (token < 0) return;
    const unsigned char* const row = rows + token * gate.token_stride;
    if constexpr (std::is_same_v<T, float>) {
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kTiles; ++j) {  // one at a time: registers hold parts of features, too
        const ptx::Words2 two = ptx::ld_global_nc_v2(row + 32 * j);
        sums[j][kFirst] *= silu(as_float(two.x[0]));
        sums[j][kFirst + 1] *= silu(as_float(two.x[1]));
      }
    } else {
      std::uint32_t gates[kTiles];
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kTiles; ++j) gates[j] = ptx::ld_global_nc(row + 16 * j);
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kTiles; ++j) {
        sums[j][kFirst] *= silu(ptx::low<T>(gates[j]));
        sums[j][kFirst + 1] *= silu(ptx::high<T>(gates[j]));
      }
    }
  }
};

}  // namespace mhla::cuda
