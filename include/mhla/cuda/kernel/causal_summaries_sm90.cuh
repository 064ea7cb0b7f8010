#pragma once

/// \file
/// Summaries and mixtures of a pair in shared memory, for fused_causal_sm90.cuh, block after block:
///
///     S_b = sum_(j in b) phi(k_j) v_j^T        z_b = sum_(j in b) phi(k_j)
///     S~_i = sum_(b < i) m_ib S_b              z~_i = sum_(b < i) m_ib z_b
///
/// by 8 warps, each with 16 rows and 32 columns. mma.sync computes S. CUDA cores compute S~, since
/// one row of m at a time would leave most rows of a tensor core's operand empty. Shared memory has
/// regions for 16 blocks:
///
///     i < 16     region i gets S_i, times summary_scale and rounded to T
///     i = 16     the first 16 blocks' part of all later mixtures replaces the summaries:
///                region r gets sum_(b < 16) m_(16 + r) b S_b, rounded (region_mixing.cuh)
///     i > 16     S_i replaces the part of S~_i in region i - 16
///
/// Mixing is elementwise, so that the places of numbers in a region do not matter. Each thread
/// stores its part of S where it reads it again, in adjacent 16 bytes. Each warp does the same with
/// z.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_causal_sm90_config.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/region_mixing.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rows.cuh"

namespace mhla::cuda {

/// Summaries of a pair, as one thread sees them.
template <class T, int D, int E>
struct CausalSummaries {
  using Config = FusedCausalSm90Config<D, E>;
  using Mixture = typename Config::Mixture;
  static constexpr std::int32_t kRegions = Config::kRegions;
  static constexpr std::uint32_t kThreads = 32 * Config::kSummaryWarps;
  static constexpr int kTiles = E / 16;  ///< tiles of 8 columns per warp

  /// A warp's part of a summary or a mixture: 16 rows as C of ptx/mma.cuh. The four threads of a
  /// row have the same z.
  struct Sums {
    float s[kTiles][4];
    RowPair z;
  };

  std::uint32_t thread;
  std::uint32_t warp;
  std::uint32_t lane;

  explicit MHLA_DEVICE CausalSummaries(std::uint32_t index)
      : thread(index), warp(index / 32), lane(index % 32) {}

  /// Computes S and z of a block at a shared address. phi(K) and V are zero after the block's
  /// tokens.
  MHLA_DEVICE Sums sums_of(std::uint32_t keys) const {
    Sums sums{};
    float z[4] = {};
    const SharedTile<64, D> features{keys};
    const SharedTile<64, E> values{keys + Config::kKeyBytes};
    const std::uint32_t one = ptx::pack<T>(1, 1);
    MHLA_CUDA_UNROLL
    for (std::uint32_t row = 0; row < 64; row += 16) {
      const ptx::Words4 a = load_transposed_rows(features, row, 2 * tile(), lane);
      ptx::mma_m16n8k16<T>(z, a.x[0], a.x[1], a.x[2], a.x[3], one, one);
      multiply_step<T>(sums.s, a.x[0], a.x[1], a.x[2], a.x[3], values, row, kTiles * half(), lane);
    }
    sums.z = {z[0], z[2]};
    return sums;
  }

  /// Stores the sums of block i. A barrier must follow before they are mixed.
  MHLA_DEVICE void keep(std::int32_t i, const Sums& sums, float scale) const {
    const auto region = static_cast<std::uint32_t>(i % kRegions);
    MHLA_CUDA_UNROLL
    for (int n = 0; n < kTiles / 2; ++n) {
      ptx::Words4 w;
      MHLA_CUDA_UNROLL
      for (int k = 0; k < 4; ++k) {
        const float* const two = sums.s[2 * n + k / 2] + k % 2 * 2;
        w.x[k] = ptx::pack<T>(two[0] * scale, two[1] * scale);
      }
      ptx::st_shared_v4(numbers(region, n), w);
    }
    if (half() == 0 && lane % 4 == 0) {
      ptx::st_shared_f32(key_sums(region), sums.z.x);
      ptx::st_shared_f32(key_sums(region) + 4, sums.z.x_8);
    }
  }

  /// For i = 16: replaces the first 16 summaries by their part of later mixtures. All threads call
  /// together.
  MHLA_DEVICE void replace(const MixingArray& mixing, std::int32_t blocks) const {
    const auto rows = static_cast<std::uint32_t>(blocks - kRegions);
    const float* const first = mixing.row(kRegions);
    const auto m = load_mixing<T, 1>(first, mixing.stride, rows, kRegions, lane);
    VectorMixing<Config::kSummaryWarps, kRegions, D> vectors{
        ptx::shared_begin() + Config::kKeySums, warp, lane, {}};
    ptx::bar_sync(1, kThreads);  // all summaries are stored
    vectors.mix(first, mixing.stride, rows, kRegions);
    mix_regions<T, Config::kSummaryWarps>(regions(), m, 0, rows, kRegions, warp, lane);
    ptx::bar_sync(1, kThreads);  // all mixtures are stored, and all z are read
    vectors.store(rows);
    ptx::bar_sync(1, kThreads);
  }

  /// Computes S~_i and z~_i, i > 0.
  MHLA_DEVICE Sums mix(std::int32_t i) const {
    Sums sums{};
    const std::int32_t first = i < kRegions ? 0 : kRegions;
    const auto count = static_cast<std::uint32_t>(i - first);
    const std::uint32_t m = Config::mixing(i, first);
    if (first > 0) add(count, 1, sums);
    std::uint32_t region = 0;
    MHLA_CUDA_LOOP
    for (; region + 4 <= count; region += 4) {
      const ptx::Words4 four = ptx::ld_shared_v4(m + 4 * region);
      MHLA_CUDA_UNROLL
      for (int n = 0; n < 4; ++n) add(region + n, as_float(four.x[n]), sums);
    }
    MHLA_CUDA_LOOP
    for (; region < count; ++region) add(region, ptx::ld_shared_f32(m + 4 * region), sums);
    return sums;
  }

  /// Stores a mixture, rounded, for wgmma.
  MHLA_DEVICE void store(const Mixture& mixture, const Sums& sums) const {
    store_sums<T, kTiles>(sums.s, 0, {1, 1}, SharedTile<D, E>{mixture.begin}, 16 * tile(),
                          kTiles * half(), lane);
    if (half() == 0 && lane % 4 == 0) {
      const std::uint32_t row = 16 * tile() + lane / 4;
      ptx::st_shared_f32(mixture.key_sum().at(row), sums.z.x);
      ptx::st_shared_f32(mixture.key_sum().at(row + 8), sums.z.x_8);
    }
    ptx::fence_proxy_async();
  }

 private:
  MHLA_DEVICE std::uint32_t tile() const { return warp % 4; }  ///< of 16 rows
  MHLA_DEVICE std::uint32_t half() const { return warp / 4; }  ///< of the columns

  static MHLA_DEVICE typename Config::Regions regions() {
    return {ptx::shared_begin() + Config::kSummaries};
  }
  /// Shared address of 8 of the thread's numbers in a region: tiles 2 n and 2 n + 1.
  MHLA_DEVICE std::uint32_t numbers(std::uint32_t region, std::uint32_t n) const {
    return regions().piece(region, thread / 8, thread % 8) + n * (kThreads / 8 * 128);
  }
  /// Shared address of z of the thread's two rows in a region.
  MHLA_DEVICE std::uint32_t key_sums(std::uint32_t region) const {
    const std::uint32_t row = region * (D / 2) + 8 * tile() + lane / 4;
    return ptx::shared_begin() + Config::kKeySums + row * 8;
  }

  /// Adds the numbers of a region, times m.
  MHLA_DEVICE void add(std::uint32_t region, float m, Sums& sums) const {
    MHLA_CUDA_UNROLL
    for (int n = 0; n < kTiles / 2; ++n) {
      const ptx::Words4 w = ptx::ld_shared_v4(numbers(region, n));
      MHLA_CUDA_UNROLL
      for (int k = 0; k < 4; ++k) {
        float* const two = sums.s[2 * n + k / 2] + k % 2 * 2;
        two[0] += m * ptx::low<T>(w.x[k]);
        two[1] += m * ptx::high<T>(w.x[k]);
      }
    }
    if (half() != 0) return;  // the first four warps have z
    const ptx::Words2 z = ptx::ld_shared_v2(key_sums(region));
    sums.z.x += m * as_float(z.x[0]);
    sums.z.x_8 += m * as_float(z.x[1]);
  }
};

}  // namespace mhla::cuda
