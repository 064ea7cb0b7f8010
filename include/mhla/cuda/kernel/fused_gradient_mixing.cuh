#pragma once

/// \file
/// Gradient of the mixing matrix for fused_gradient_sm80.cuh: sums of <dS~_i, S_b> and
/// dz~_i . z_b over the pairs of a thread block.
///
/// dS~ is in the regions of shared memory, where it replaced S~ and S. S comes from device memory,
/// where the warp that reads it has written it before. The product over rows and columns of S has
/// blocks i as rows of A and blocks b as columns of B. Both operands are loaded in the same way, so
/// that a warp writes and reads 512 adjacent bytes.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_gradient_stages.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda {

/// A thread's part of dm.
template <class T, int D, int kLimit>
struct FusedMixingGradient {
  using Config = FusedGradientConfig<D, kLimit>;
  static constexpr int kTiles = Config::kRegions > 8 ? 2 : 1;  ///< of 8 blocks b

  const FusedGradientParameters& p;
  const FusedGradientStages<T, D, kLimit>& at;
  std::uint32_t rows;         ///< Mq
  std::uint32_t columns;      ///< Mk
  float products[kTiles][4];  ///< the warp's part of <dS~_i, S_b>, as C of ptx/mma.cuh
  float sums;                 ///< dz~_i . z_b of the thread's i and b

  /// Copies S to device memory, as operands.
  MHLA_DEVICE void keep_summaries() const {
    MHLA_CUDA_LOOP
    for (std::uint32_t unit = at.warp; unit < Config::kUnits; unit += Config::kWarps) {
      ptx::st_global_v4(kept(unit), load_unit(unit, columns));
    }
  }

  /// Adds <dS~_i, S_b> and dz~_i . z_b of a pair.
  MHLA_DEVICE void add_products() {
    MHLA_CUDA_LOOP
    for (std::uint32_t unit = at.warp; unit < Config::kUnits; unit += Config::kWarps) {
      const ptx::Words4 s = ptx::ld_global_v4(kept(unit));
      const ptx::Words4 d = load_unit(unit, rows);
      if constexpr (kTiles == 2) {
        MHLA_CUDA_UNROLL
        for (int b = 0; b < 2; ++b) multiply(products[b], d, s.x[b], s.x[b + 2]);
      } else {
        MHLA_CUDA_UNROLL
        for (int half = 0; half < 4; half += 2) {
          multiply(products[0], {{d.x[half], 0, d.x[half + 1], 0}}, s.x[half], s.x[half + 1]);
        }
      }
    }
    if (p.normalization.denominator != Denominator::kKeySum || at.thread >= rows * columns) return;
    const auto i = static_cast<std::int32_t>(at.thread / columns);
    const auto b = static_cast<std::int32_t>(at.thread % columns);
    MHLA_CUDA_LOOP
    for (std::uint32_t n = 0; n < D; ++n) {
      const std::uint32_t d = 4 * ((n + at.thread) % D);  // threads read different banks
      sums += ptx::ld_shared_f32(at.mixed_sum(i) + d) * ptx::ld_shared_f32(at.sum(b) + d);
    }
  }

  /// Writes the thread block's part of dm: sums of all warps, in order.
  MHLA_DEVICE void write_part() const {
    const auto place = [&](std::uint32_t warp, std::uint32_t i, std::uint32_t b) {
      return at.shared + 1024 * warp + 4 * (16 * i + b);
    };
    ptx::bar_sync();  // all stages are read
    MHLA_CUDA_UNROLL
    for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t n = 0; n < 4; ++n) {
        ptx::st_shared_f32(
            place(at.warp, at.lane / 4 + n / 2 * 8, 8 * tile + at.lane % 4 * 2 + n % 2),
            products[tile][n]);
      }
    }
    ptx::bar_sync();
    if (at.thread >= rows * columns) return;
    float sum = 0;
    MHLA_CUDA_UNROLL
    for (std::uint32_t warp = 0; warp < Config::kWarps; ++warp) {
      sum += ptx::ld_shared_f32(place(warp, at.thread / columns, at.thread % columns));
    }
    const auto block = static_cast<std::int32_t>(ptx::ctaid_x());
    const std::int32_t of_matrix = static_cast<std::int32_t>(ptx::nctaid_x()) / p.matrices;
    const std::int32_t part = block % p.matrices * of_matrix + block / p.matrices;
    ptx::st_global_f32(p.parts + std::int64_t{part} * (rows * columns) + at.thread,
                       sum * inverse_power(p.query_scale) * inverse_power(p.key_scale) + sums);
  }

 private:
  /// Loads a unit of all regions as A operands: the same pieces of 16 blocks, or of 8.
  MHLA_DEVICE ptx::Words4 load_unit(std::uint32_t unit, std::uint32_t blocks) const {
    constexpr std::uint32_t kBlocks = Config::kRegions > 8 ? 16 : 8;
    const std::uint32_t block = at.lane % kBlocks;
    const std::uint32_t piece = unit * Config::kUnitPieces + at.lane / kBlocks;
    const std::uint32_t source =
        at.regions().piece(block, piece / Config::kPieces, piece % Config::kPieces);
    return ptx::ldmatrix_x4(block < blocks ? source : at.zeros() + source % 128);
  }
  MHLA_DEVICE unsigned char* kept(std::uint32_t unit) const {
    return p.kept + std::int64_t{Config::kKeptBytes} * ptx::ctaid_x() + 512 * unit + 16 * at.lane;
  }
  static MHLA_DEVICE void multiply(float (&to)[4], const ptx::Words4& a, std::uint32_t b0,
                                   std::uint32_t b1) {
    ptx::mma_m16n8k16<T>(to, a.x[0], a.x[1], a.x[2], a.x[3], b0, b1);
  }
};

}  // namespace mhla::cuda
