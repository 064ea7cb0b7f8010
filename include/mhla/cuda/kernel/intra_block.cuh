#pragma once

/// \file
/// Products of 64 queries with 64 keys of their own block, up to the query itself, by a warpgroup:
///
///     P = T(w phi(Q) phi(K)^T)       wgmma; 0 for keys later than the query. w is m_ii for half,
///                                    whose range the products might exceed, and otherwise 1:
///                                    then sums are multiplied by m_ii instead of all weights
///     totals += P 1                  mma.sync
///     O += P V                       keys of the queries' tile: by each warp alone
///                                    (tile/triangular_product.cuh),
///                                    keys of earlier tiles: wgmma
///
/// Values of later tokens never enter, even if they are infinite or NaN.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/triangular_product.cuh"

namespace mhla::cuda {

/// Features of 64 keys and kColumns columns of their values in shared memory, in contiguous panels
/// of 64 columns.
/// \tparam kTotals  true if totals are computed, for denominators
template <class T, int D, int kColumns, bool kTotals = true>
struct IntraBlockTile {
  static constexpr int kTiles = kColumns / 8;
  static constexpr std::uint32_t kPanelBytes = 64 * 128;
  static constexpr bool kWeighs = std::is_same_v<T, half>;  ///< w is m_ii

  std::uint32_t keys;    ///< shared address of the first panel
  std::uint32_t values;  ///< shared address of the first panel
  float weight;          ///< w
  std::uint32_t warp;    ///< index in the warpgroup
  std::uint32_t lane;

  /// Adds sums += P V and, in every column, totals += row sums of P. `features` holds the warp's 16
  /// rows of phi(Q), after ptx::fence_registers. `is_diagonal` says that queries and keys are the
  /// same tile. The warpgroup calls together.
  MHLA_DEVICE void add(float (&totals)[4], float (&sums)[kTiles][4], const Fragment<D>& features,
                       bool is_diagonal) const {
    Fragment<64> rounded = weigh(features);
    if (is_diagonal) {
      add_diagonal(totals, sums, rounded);
    } else {
      add_earlier(totals, sums, rounded);
    }
  }

 private:
  /// Computes P of the warp's rows without zeroing later keys.
  MHLA_DEVICE Fragment<64> weigh(const Fragment<D>& features) const {
    float scores[8][4] = {};
    ptx::fence_registers(scores);
    ptx::wgmma_fence();
    MHLA_CUDA_UNROLL
    for (int s = 0; s < D / 16; ++s) {
      ptx::wgmma_m64k16<0>(scores, features.x + 4 * s,
                           transposed_factor(keys + s / 4 * kPanelBytes, 0, s % 4), T{});
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::fence_registers(scores);
    if constexpr (kWeighs) scale_sums(scores, weight);
    Fragment<64> rounded;
    MHLA_CUDA_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float(&c)[4] = scores[j];
      rounded.x[2 * j] = ptx::pack<T>(c[0], c[1]);
      rounded.x[2 * j + 1] = ptx::pack<T>(c[2], c[3]);
    }
    return rounded;
  }

  /// Adds the products of 16 columns of P with ones to totals.
  static MHLA_DEVICE void add_ones(float (&totals)[4], const std::uint32_t* a) {
    if constexpr (!kTotals) return;
    const std::uint32_t ones = ptx::pack<T>(1, 1);
    ptx::mma_m16n8k16<T>(totals, a[0], a[1], a[2], a[3], ones, ones);
  }

  /// Adds the products of the queries' own tile.
  MHLA_DEVICE void add_diagonal(float (&totals)[4], float (&sums)[kTiles][4],
                                const Fragment<64>& weights) const {
    const SharedTile<64, kColumns> rows{values};
    Fragment<16> diagonal{};
    MHLA_CUDA_UNROLL
    for (int s = 0; s < 4; ++s) {
      const std::uint32_t* const a = weights.x + 4 * s;
      const auto step = static_cast<std::uint32_t>(s);
      if (step < warp) {
        add_ones(totals, a);
        multiply_step<T>(sums, a[0], a[1], a[2], a[3], rows, 16 * step, 0, lane);
      }
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) diagonal.x[i] = step == warp ? a[i] : diagonal.x[i];
    }
    const Fragment<16> lower = lower_triangle(diagonal, lane);
    add_ones(totals, lower.x);
    multiply_lower<T>(sums, lower, rows, 16 * warp, lane);
  }

  /// Adds the products of an earlier tile.
  MHLA_DEVICE void add_earlier(float (&totals)[4], float (&sums)[kTiles][4],
                               Fragment<64>& weights) const {
    ptx::fence_registers(sums);
    ptx::fence_registers(weights.x);
    ptx::wgmma_fence();
    MHLA_CUDA_UNROLL
    for (int s = 0; s < 4; ++s) {
      ptx::wgmma_m64k16<1>(sums, weights.x + 4 * s, factor(values, 16 * s, kPanelBytes), T{});
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::fence_registers(sums);
    MHLA_CUDA_UNROLL
    for (int s = 0; s < 4; ++s) add_ones(totals, weights.x + 4 * s);
  }
};

}  // namespace mhla::cuda
