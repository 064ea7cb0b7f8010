#pragma once

/// \file
/// Products of a warpgroup's 64 queries with 64 keys and values at a time, in any order of keys:
///
///     P = T(m * (phi(Q) phi(K)^T))     wgmma, m of key_mixing.cuh
///     den += P 1                       mma.sync, or
///     den += the scores with keys of the query's own block            if kCrossQuery
///     n += P V                         wgmma, begins when half of P is computed
///
/// All threads of the warpgroup call together.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// Registers of a thread.
template <class T, int D, int E, bool kCrossQuery = false>
struct WeightedValues {
  static constexpr int kColumns = Width<E>::kPart;  ///< columns per product with V
  static constexpr int kProducts = E / kColumns;
  static constexpr std::uint32_t kPanelBytes = 64 * 128;

  Fragment<D> features;                 ///< of the warp's 16 queries, after fence_registers
  std::uint32_t mixing[2];              ///< shared addresses of the first m of the thread's rows
  float n[kProducts][kColumns / 8][4];  ///< 0 at first
  /// Denominators of row lane / 4, twice, and of row lane / 4 + 8. If kCrossQuery, the thread's
  /// part.
  float den[4];
  /// If kCrossQuery, bits of the part's keys in the blocks of the rows (key_mixing.cuh).
  std::uint32_t own_keys[2];

  /// Starts to add the `part`-th 64 keys. `keys` is the shared address of phi(K), in panels of 64
  /// columns, followed by V. For absent keys m is 0, and phi(K) and V are finite.
  MHLA_DEVICE void start(std::uint32_t keys, std::int32_t part) {
    const std::uint32_t values = keys + D / 64 * kPanelBytes;
    float scores[8][4];
    ptx::fence_registers(scores);
    ptx::wgmma_fence();
    ptx::wgmma_m64k16<0, 0>(scores, features.x, transposed_factor(keys, 0, 0), T{});
    MHLA_CUDA_UNROLL
    for (int s = 1; s < D / 16; ++s) {
      ptx::wgmma_m64k16<0>(scores, features.x + 4 * s,
                           transposed_factor(keys + s / 4 * kPanelBytes, 0, s % 4), T{});
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::fence_registers(scores);
    if constexpr (kCrossQuery) add_own_keys(scores);
    MHLA_CUDA_UNROLL
    for (int c = 0; c < kProducts; ++c) ptx::fence_registers(n[c]);
    MHLA_CUDA_UNROLL
    for (int half = 0; half < 2; ++half) {
      weigh(scores, part, 2 * half);
      weigh(scores, part, 2 * half + 1);
      ptx::wgmma_fence();
      MHLA_CUDA_UNROLL
      for (int s = 2 * half; s < 2 * half + 2; ++s) {
        MHLA_CUDA_UNROLL
        for (int c = 0; c < kProducts; ++c) {
          const std::uint32_t panel = values + c * (kColumns / 64) * kPanelBytes;
          ptx::wgmma_m64k16<1>(n[c], weights_[s].x, factor(panel, 16 * s, kPanelBytes), T{});
        }
      }
      ptx::wgmma_commit_group();
    }
  }

  /// Waits for the started products.
  MHLA_DEVICE void finish() {
    ptx::wgmma_wait_group<0>();
    MHLA_CUDA_UNROLL
    for (int c = 0; c < kProducts; ++c) ptx::fence_registers(n[c]);
    MHLA_CUDA_UNROLL
    for (ptx::Words4& w : weights_) ptx::fence_registers(w.x);  // the products read them until here
  }

 private:
  /// Adds the scores with keys of the rows' own blocks.
  MHLA_DEVICE void add_own_keys(const float (&scores)[8][4]) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 16; ++j) {
        if ((own_keys[i] >> j & 1) != 0) den[2 * i] += scores[j / 2][2 * i + j % 2];
      }
    }
  }

  /// Computes P of keys 16 s.. 16 s + 15 of the 64, before a fence, and adds to den.
  MHLA_DEVICE void weigh(const float (&scores)[8][4], std::int32_t part, int s) {
    const std::uint32_t one = ptx::pack<T>(1, 1);
    std::uint32_t(&a)[4] = weights_[s].x;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {  // rows lane / 4 and lane / 4 + 8
      const ptx::Words4 m =
          ptx::ld_shared_v4(mixing[i] + static_cast<std::uint32_t>(64 * (4 * part + s)));
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 2; ++j) {
        const float* const score = scores[2 * s + j] + 2 * i;
        a[2 * j + i] =
            ptx::pack<T>(score[0] * as_float(m.x[2 * j]), score[1] * as_float(m.x[2 * j + 1]));
      }
    }
    if constexpr (!kCrossQuery) ptx::mma_m16n8k16<T>(den, a[0], a[1], a[2], a[3], one, one);
    ptx::fence_registers(a);
  }

  ptx::Words4 weights_[4];  // P, 16 keys each
};

}  // namespace mhla::cuda
