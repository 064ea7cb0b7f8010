#pragma once

/// \file
/// Products of 16 queries with 16 keys and values by one warp, which loads keys and values directly
/// into operands of mma.sync:
///
///     P    = T(m * (phi(Q) phi(K)^T))     [16, 16]
///     den += P 1,   n += P V
///
/// in pieces of 16 bytes. A product may sum its channels, and order its columns, in any order that
/// both factors share. With g = lane / 4, c = lane % 4:
///
///     Q, K    a thread has channels 32 s + 8 c.. of rows g and g + 8, words of steps 2 s, 2 s + 1
///     V       columns 64 s + 8 g.. of rows 2 c, 2 c + 1, 2 c + 8 and 2 c + 9: column g of tile
///             8 s + t is 64 s + 8 g + t
///     n       a thread has columns 64 s + 16 c + t and + 8 of tile 8 s + t (ptx/mma.cuh)
///
/// Rows after the last key repeat the last key with an m of 0. Since the same values are
/// multiplied, they add no infinity or NaN.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Rows of the mixing matrix for queries lane / 4 and lane / 4 + 8.
struct MixingRows {
  const float* x[2];

  /// Rows of a pair for queries first... Each thread computes one row, and others get it by a
  /// shuffle. After the last query its row repeats. All threads of the warp call together.
  static MHLA_DEVICE MixingRows of(const DirectParameters& p, BatchHead pair, std::int32_t first,
                                   std::uint32_t lane) {
    const std::int32_t query = first + static_cast<std::int32_t>(lane % 16);
    const std::int32_t last = p.query_blocks.tokens() - 1;
    const std::int32_t block = p.query_blocks.block_of(query < last ? query : last);
    const auto pointer = reinterpret_cast<std::uintptr_t>(p.mixing.of(pair).row(block));
    MixingRows rows;
    MHLA_CUDA_UNROLL
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t row = lane / 4 + 8 * i;
      const std::uint64_t low = ptx::shfl_idx(static_cast<std::uint32_t>(pointer), row);
      const std::uint64_t high = ptx::shfl_idx(static_cast<std::uint32_t>(pointer >> 32), row);
      rows.x[i] = reinterpret_cast<const float*>(high << 32 | low);
    }
    return rows;
  }
};

/// A thread's part of 16 keys and values of D numbers.
template <class T, int D>
struct SplitKeys {
  static constexpr int kKeys = 16;
  static constexpr std::uint32_t kOperandBytes = 512;  ///< bytes per step of phi(Q), 16 per thread

  struct Sums {
    float n[D / 8][4];
    float den[4];  ///< of row lane / 4, twice, and of row lane / 4 + 8
  };

  ptx::Words4 k[2][D / 32];
  ptx::Words4 v[4][D / 64];
  float m[2][4];  ///< of queries g and g + 8 and the rows of V

  /// Shared address of a step of phi(Q).
  static MHLA_DEVICE std::uint32_t operand(std::uint32_t features, std::uint32_t step,
                                           std::uint32_t lane) {
    return features + step * kOperandBytes + lane * 16;
  }

  /// Loads keys and values `first`.. of a pair, without m.
  static MHLA_DEVICE SplitKeys load(const DirectParameters& p, BatchHead pair, std::int32_t first,
                                    std::uint32_t lane) {
    const auto row = [&](const ConstTokenTensor& x, std::int32_t token) {
      return x.head(pair) + static_cast<std::uint32_t>(existing(p, token)) * x.token_stride;
    };
    SplitKeys keys{};
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const auto key = static_cast<std::int32_t>(lane / 4) + 8 * i;
      const unsigned char* const from = row(p.k, first + key) + lane % 4 * 16;
      MHLA_CUDA_UNROLL
      for (int s = 0; s < D / 32; ++s) keys.k[i][s] = ptx::ld_global_nc_v4(from + 64 * s);
    }
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const unsigned char* const from = row(p.v, first + value_row(i, lane)) + lane / 4 * 16;
      MHLA_CUDA_UNROLL
      for (int s = 0; s < D / 64; ++s) keys.v[i][s] = ptx::ld_global_nc_v4(from + 128 * s);
    }
    return keys;
  }

  /// Loads m of these keys. All threads of the warp call together.
  MHLA_DEVICE void load_mixing(const DirectParameters& p, const MixingRows& rows,
                               std::int32_t first, std::uint32_t lane) {
    const std::int32_t token = existing(p, first + static_cast<std::int32_t>(lane % 16));
    const WarpTokens block_of{p.key_blocks.block_of(token)};
    std::int32_t block[4];
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) block[i] = block_of(value_row(i, lane));
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 8; ++i) {
      const bool is_one = first + value_row(i % 4, lane) < p.key_blocks.tokens();
      if (is_one) m[i / 4][i % 4] = ptx::ld_global_nc_f32(rows.x[i / 4] + block[i % 4]);
    }
  }

  /// Adds the products with these keys.
  /// \param features  shared address of phi(Q)
  MHLA_DEVICE void add_to(Sums& sums, const FeatureMap& map, std::uint32_t features,
                          std::uint32_t lane) {
    ptx::Words4 q[D / 16];
    MHLA_CUDA_UNROLL
    for (std::uint32_t s = 0; s < D / 16; ++s) q[s] = ptx::ld_shared_v4(operand(features, s, lane));
    map.with_formula([&](auto phi) {
      MHLA_CUDA_UNROLL
      for (auto& row : k) {
        MHLA_CUDA_UNROLL
        for (ptx::Words4& piece : row) apply<T>(phi, piece.x);
      }
    });
    float scores[2][4] = {};
    MHLA_CUDA_UNROLL
    for (int s = 0; s < D / 16; ++s) {
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 2; ++j) {
        const std::uint32_t* const b = k[j][s / 2].x + s % 2 * 2;
        ptx::mma_m16n8k16<T>(scores[j], q[s].x[0], q[s].x[1], q[s].x[2], q[s].x[3], b[0], b[1]);
      }
    }
    std::uint32_t a[4];  // P
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* const score = scores[i / 2] + i % 2 * 2;
      const float* const weight = m[i % 2] + i / 2 * 2;
      a[i] = ptx::pack<T>(score[0] * weight[0], score[1] * weight[1]);
    }
    const std::uint32_t one = ptx::pack<T>(1, 1);
    ptx::mma_m16n8k16<T>(sums.den, a[0], a[1], a[2], a[3], one, one);
    MHLA_CUDA_UNROLL
    for (int t = 0; t < D / 8; ++t) {
      const auto pair = [&](int row) {  // of rows `row` and row + 1 of the thread's four
        const std::uint32_t x = v[row][t / 8].x[t % 8 / 2], y = v[row + 1][t / 8].x[t % 8 / 2];
        return t % 2 == 0 ? ptx::low_halves(x, y) : ptx::high_halves(x, y);
      };
      ptx::mma_m16n8k16<T>(sums.n[t], a[0], a[1], a[2], a[3], pair(0), pair(2));
    }
  }

 private:
  static MHLA_DEVICE std::int32_t existing(const DirectParameters& p, std::int32_t token) {
    const std::int32_t last = p.key_blocks.tokens() - 1;
    return token < last ? token : last;
  }
  /// Returns the thread's i-th row of V.
  static MHLA_DEVICE std::int32_t value_row(int i, std::uint32_t lane) {
    return static_cast<std::int32_t>(lane % 4 * 2) + i / 2 * 8 + i % 2;
  }
};

}  // namespace mhla::cuda
