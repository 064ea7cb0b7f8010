#pragma once

/// \file
/// A mixture S~_i [D, E] in shared memory, followed by z~_i. Kernels that read outputs from
/// mixtures share it. It is the factor B of wgmma, or of mma.sync if rows are not panels. Tensor
/// copies load it in boxes of D rows of a panel, or of all columns. For Precision::kPair the low
/// part follows the high part.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

template <int D, int E, Precision P>
struct MixtureSlot {
  static constexpr int kParts = P == Precision::kPair ? 2 : 1;
  static constexpr int kPanelColumns = Width<E>::kPanelColumns;
  static constexpr int kPanelBytes = D * kPanelColumns * 2;
  static constexpr int kPartBytes = D * E * 2;
  static constexpr int kBytes = kParts * kPartBytes + 1024;

  std::uint32_t begin;  ///< shared address, a multiple of Width<E>::kAlignment

  /// z~_i.
  MHLA_HOST_DEVICE constexpr BoxVector<D> key_sum() const { return {begin + kParts * kPartBytes}; }

  /// Boxes of S~, of its low part and of z~ in an array [pairs, M, D, E]. A box has no base if
  /// there is nothing to load.
  static constexpr void boxes(const SummaryArray& array, Denominator denominator,
                              std::int32_t blocks, std::int32_t pairs, TensorBox* boxes) {
    const std::int64_t step = array.first(1, blocks);
    boxes[0] = box(array.high, blocks, pairs, step);
    boxes[1] = kParts == 2 ? box(array.low, blocks, pairs, step) : TensorBox{};
    boxes[2] = denominator == Denominator::kKeySum
                   ? BoxVector<D>::box(array.key_sum, blocks, pairs, step)
                   : TensorBox{};
  }

  /// Prefetches `others` maps, and after them the maps of boxes() that load() uses.
  static MHLA_DEVICE void prefetch_maps(const TensorMap* maps, int others,
                                        Denominator denominator) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < others + kParts; ++i) ptx::prefetch_tensormap(maps[i]);
    if (denominator == Denominator::kKeySum) ptx::prefetch_tensormap(maps[others + 2]);
  }

  /// Bytes that load() loads.
  static MHLA_HOST_DEVICE constexpr std::uint32_t loaded_bytes(bool key_sum) {
    return kParts * kPartBytes + (key_sum ? BoxVector<D>::kBytes : 0);
  }

  /// Starts to load S~ and, if wanted, z~ of a block. `maps` are the maps of boxes().
  MHLA_DEVICE void load(const TensorMap* maps, std::int32_t pair, std::int32_t block, bool key_sum,
                        std::uint32_t barrier) const {
    MHLA_CUDA_UNROLL
    for (int part = 0; part < kParts; ++part) {
      MHLA_CUDA_UNROLL
      for (int panel = 0; panel < E / kPanelColumns; ++panel) {
        ptx::cp_async_bulk_tensor(begin + part * kPartBytes + panel * kPanelBytes, maps[part],
                                  {{kPanelColumns * panel, 0, block, pair, 0}}, barrier);
      }
    }
    if (key_sum)
      ptx::cp_async_bulk_tensor(this->key_sum().begin, maps[2], {{0, 0, block, pair, 0}}, barrier);
  }

  /// Starts sums += features S~ for columns column.. column + 8 kTiles - 1 of S~, 64 or 128 of
  /// them. A warpgroup calls it between wgmma_fence and wgmma_commit_group, after
  /// ptx::fence_registers of sums and features.
  template <class T, int kTiles>
  MHLA_DEVICE void multiply(float (&sums)[kTiles][4], const Fragment<D>& features,
                            int column) const {
    MHLA_CUDA_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const std::uint32_t panel = begin + part * kPartBytes + column / 64 * kPanelBytes;
      MHLA_CUDA_UNROLL
      for (int s = 0; s < D / 16; ++s) {
        ptx::wgmma_m64k16<1>(sums, features.x + 4 * s, factor(panel, 16 * s, kPanelBytes), T{});
      }
    }
  }

  /// Adds sums += features S~, over kCount times 8 kTiles adjacent columns. A warpgroup calls it
  /// after ptx::fence_registers of `features`. Without panels each warp calls it alone.
  template <class T, int kCount, int kTiles>
  MHLA_DEVICE void add_products(float (&sums)[kCount][kTiles][4], const Fragment<D>& features,
                                std::uint32_t lane) const {
    if constexpr (!Width<D>::kPanels) {
      MHLA_CUDA_UNROLL
      for (int part = 0; part < kParts; ++part) {
        const SharedTile<D, E> mixture{begin + part * kPartBytes};
        cuda::multiply<T>(sums[0], features, mixture, 0, 0, lane);
      }
    } else {
      MHLA_CUDA_UNROLL
      for (auto& part : sums) ptx::fence_registers(part);
      ptx::wgmma_fence();
      MHLA_CUDA_UNROLL
      for (int i = 0; i < kCount; ++i) multiply<T>(sums[i], features, i * 8 * kTiles);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      MHLA_CUDA_UNROLL
      for (auto& part : sums) ptx::fence_registers(part);
    }
  }

 private:
  static constexpr TensorBox box(unsigned char* part, std::int64_t blocks, std::int64_t pairs,
                                 std::int64_t step) {
    const auto summary = static_cast<std::uint64_t>(kPartBytes);
    const auto head = static_cast<std::uint64_t>(step) * summary;
    return {part,
            {E, D, static_cast<std::uint64_t>(blocks), static_cast<std::uint64_t>(pairs), 1},
            {2 * E, summary, head, head},
            {kPanelColumns, D, 1, 1, 1}};
  }
};

}  // namespace mhla::cuda
