#pragma once

/// \file
/// What tokens get from their own block up to themselves, for a warpgroup and a tile of
/// 64 queries:
///
///     P = T(m_ii phi(Q) phi(K tile)^T)    wgmma; 0 for keys later than the query
///     O += P V tile                       own tile: by each warp alone
///     (tile/triangular_product.cuh),
///                                         earlier tiles: wgmma
///
/// Later tokens of the tile never enter, whatever they are.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/triangular_product.cuh"

namespace mhla::cuda {

/// Features of keys and kColumns columns of values of a block in shared memory, rows filled up to a
/// multiple of 64 with numbers.
template <class T, int D, int kColumns>
struct OwnBlock {
  static constexpr int kTiles = kColumns / 8;

  std::uint32_t keys;         ///< shared address of the first panel of 64 columns
  std::uint32_t values;       ///< likewise
  std::uint32_t panel_bytes;  ///< from a panel to the next
  float weight;               ///< m_ii
  std::uint32_t warp;         ///< of the warpgroup
  std::uint32_t lane;

  /// sums = P V for queries of tile `tile`, of which `features` holds the warp's 16 rows, in order
  /// (ptx::fence_registers). Returns the sums of a thread's two rows of P. The group calls
  /// together.
  MHLA_DEVICE RowPair start(float (&sums)[kTiles][4], const Fragment<D>& features,
                            std::int32_t tile) const {
    RowPair weights{0, 0};
    const Fragment<64> own = weigh(features, tile, true);
    add_elements<T>(weights, own);
    start_own_tile(sums, own, tile);
    MHLA_CUDA_LOOP
    for (std::int32_t other = 0; other < tile; ++other) {
      Fragment<64> earlier = weigh(features, other, false);
      add_elements<T>(weights, earlier);
      add_tile(sums, earlier, other);
    }
    return over_row(weights);
  }

 private:
  /// V as tile functions want it.
  struct Values {
    static constexpr int kPieces = kColumns / 8;
    std::uint32_t begin;
    std::uint32_t panel_bytes;
    MHLA_HOST_DEVICE constexpr std::uint32_t piece(std::uint32_t row, std::uint32_t piece) const {
      return begin + piece / 8 * panel_bytes + BoxPanel::offset(row, piece % 8);
    }
  };

  /// P of the warp's rows and a tile of keys.
  MHLA_DEVICE Fragment<64> weigh(const Fragment<D>& features, std::int32_t tile,
                                 bool is_own) const {
    float scores[8][4] = {};
    ptx::fence_registers(scores);
    ptx::wgmma_fence();
    MHLA_CUDA_UNROLL
    for (int s = 0; s < D / 16; ++s) {
      ptx::wgmma_m64k16<0>(scores, features.x + 4 * s,
                           transposed_factor(keys + s / 4 * panel_bytes,
                                             static_cast<std::uint32_t>(tile) * 64, s % 4),
                           T{});
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::fence_registers(scores);
    const std::uint32_t row = 16 * warp + lane / 4;
    Fragment<64> rounded;
    MHLA_CUDA_UNROLL
    for (int j = 0; j < 8; ++j) {
      const std::uint32_t key = 8 * static_cast<std::uint32_t>(j) + lane % 4 * 2;
      const auto one = [&](int i, std::uint32_t own_row, std::uint32_t own_key) {
        return is_own && own_key > own_row ? 0.0f : scores[j][i] * weight;
      };
      rounded.x[2 * j] = ptx::pack<T>(one(0, row, key), one(1, row, key + 1));
      rounded.x[2 * j + 1] = ptx::pack<T>(one(2, row + 8, key), one(3, row + 8, key + 1));
    }
    return rounded;
  }

  /// sums = P V of the own tile.
  MHLA_DEVICE void start_own_tile(float (&sums)[kTiles][4], const Fragment<64>& weights,
                                  std::int32_t tile) const {
    const Values own_values{values, panel_bytes};
    const auto row = static_cast<std::uint32_t>(tile) * 64;
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      MHLA_CUDA_UNROLL
      for (float& x : sums[j]) x = 0;
    }
    Fragment<16> lower{};
    MHLA_CUDA_UNROLL
    for (int s = 0; s < 4; ++s) {
      const std::uint32_t* const a = weights.x + 4 * s;
      const auto step = static_cast<std::uint32_t>(s);
      if (step < warp) {
        multiply_step<T>(sums, a[0], a[1], a[2], a[3], own_values, row + 16 * step, 0, lane);
      }
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) lower.x[i] = step == warp ? a[i] : lower.x[i];
    }
    multiply_lower<T>(sums, lower, own_values, row + 16 * warp, lane);
  }

  /// sums += P V of an earlier tile.
  MHLA_DEVICE void add_tile(float (&sums)[kTiles][4], Fragment<64>& weights,
                            std::int32_t tile) const {
    const auto row = static_cast<std::uint32_t>(tile) * 64;
    ptx::fence_registers(sums);
    ptx::fence_registers(weights.x);
    ptx::wgmma_fence();
    MHLA_CUDA_UNROLL
    for (int s = 0; s < 4; ++s) {
      ptx::wgmma_m64k16<1>(sums, weights.x + 4 * s, factor(values, row + 16 * s, panel_bytes), T{});
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::fence_registers(sums);
  }
};

}  // namespace mhla::cuda
