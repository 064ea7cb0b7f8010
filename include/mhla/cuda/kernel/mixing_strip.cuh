#pragma once

/// \file
/// A strip of 64 b of mixing_sm90.cuh in shared memory: summaries S_b of the columns of an item,
/// and m_ib of its rows, high parts first. It stores m, and adds its products to units:
///
///     unit[64, 128] += m[64, 64] (A, in registers)  S[64, 128] (B, in place)

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixing_sm90_config.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/triangular_product.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P>
struct MixingStrip {
  using Config = MixingSm90Config<D, E, P>;
  static constexpr int kTiles = 8 * Config::kPanels;
  static constexpr int kParts = Config::kParts;
  static constexpr int kSteps = Config::kStrip / 16;
  using Sums = float[kTiles][4];

  std::int32_t index;
  std::uint32_t summaries;     ///< shared address: panels [64 b][64 columns]
  std::uint32_t summary_part;  ///< bytes of a part
  std::uint32_t factors;       ///< shared address: a panel [rows][64 b]
  std::uint32_t factor_part;

  /// Stores rows warp, warp + kWarps.. of m, with zeros for b that a row does not use.
  /// \param mixing  the matrix of the pair
  template <int kWarps>
  MHLA_DEVICE void store_factors(const MixingParameters& p, const MixingArray& mixing,
                                 std::uint32_t warp, std::uint32_t lane) const {
    constexpr int kAhead = 16;  // rows loaded together
    const auto rows = static_cast<std::int32_t>(factor_part / 128);
    const std::int32_t b = Config::kStrip * index + static_cast<std::int32_t>(2 * lane);
    const std::int32_t step = kWarps;
    MHLA_CUDA_LOOP
    for (auto first = static_cast<std::int32_t>(warp); first < rows; first += step * kAhead) {
      const float* from = mixing.row(first) + b;
      float m[kAhead][2];
      MHLA_CUDA_UNROLL
      for (std::int32_t r = 0; r < kAhead; ++r, from += step * mixing.stride) {
        const std::int32_t row = first + step * r;
        const std::int32_t end = row < rows ? p.end(row) : 0;
        m[r][0] = b < end ? ptx::ld_global_nc_f32(from) : 0;
        m[r][1] = b + 1 < end ? ptx::ld_global_nc_f32(from + 1) : 0;
      }
      MHLA_CUDA_UNROLL
      for (std::int32_t r = 0; r < kAhead; ++r) {
        const auto row = static_cast<std::uint32_t>(first + step * r);
        if (first + step * r >= rows) continue;
        const std::uint32_t to = BoxPanel{factors}.piece(row, lane / 4) + lane % 4 * 4;
        const Parts parts = parts_of<T>(m[r][0], m[r][1]);
        ptx::st_shared(to, parts.high);
        if constexpr (kParts == 2) ptx::st_shared(to + factor_part, parts.low);
      }
    }
  }

  /// Adds the strip to units of the same rows, as far as these use it. Strip 0 initialises the
  /// units; all rows use it. A warpgroup calls together, and `warp` is the index in it.
  template <int kCount>
  MHLA_DEVICE void add_to(const MixingUnit* units, const MixingParameters& p, std::uint32_t warp,
                          std::uint32_t lane, Sums* sums) const {
    // The fence keeps addresses from being computed early, since sums need the registers.
    std::uint32_t fenced[] = {lane};
    ptx::fence_registers(fenced);
    const std::int32_t whole = units->whole;
    if (index >= whole) {
      if (!p.earlier || index != whole) return;
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kCount; ++j) add_diagonal(units[j], p.rows, warp, fenced[0], sums[j]);
    } else if (index == 0) {
      add_whole<kCount, 0>(units, warp, fenced[0], sums);
    } else {
      add_whole<kCount, 1>(units, warp, fenced[0], sums);
    }
  }

 private:
  using Factors = ptx::Words4[kSteps][kParts];

  /// \tparam kAdds  0 for the first strip, otherwise 1
  template <int kCount, int kAdds>
  MHLA_DEVICE void add_whole(const MixingUnit* units, std::uint32_t warp, std::uint32_t lane,
                             Sums* sums) const {
    Factors m;
    load_all_factors(*units, warp, lane, m);
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kCount; ++j) ptx::fence_registers(sums[j]);
    ptx::wgmma_fence();
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kCount; ++j) multiply<kAdds>(units[j], m, sums[j]);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kCount; ++j) ptx::fence_registers(sums[j]);
  }

  MHLA_DEVICE void load_all_factors(const MixingUnit& unit, std::uint32_t warp, std::uint32_t lane,
                                    Factors& m) const {
    MHLA_CUDA_UNROLL
    for (std::uint32_t s = 0; s < kSteps; ++s) {
      load_factors(unit, s, warp, lane, m[s]);
      MHLA_CUDA_UNROLL
      for (int part = 0; part < kParts; ++part) ptx::fence_registers(m[s][part].x);
    }
  }

  /// Starts the products of a unit.
  template <int kAdds>
  MHLA_DEVICE void multiply(const MixingUnit& unit, const Factors& m, Sums& sums) const {
    const std::uint32_t panel = summaries + unit.panel * Config::kPanelBytes;
    MHLA_CUDA_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      const std::uint64_t high = factor(panel, 16 * s, Config::kPanelBytes);
      if (s == 0) {
        ptx::wgmma_m64k16<1, kAdds>(sums, m[s][0].x, high, T{});
      } else {
        ptx::wgmma_m64k16<1>(sums, m[s][0].x, high, T{});
      }
      if constexpr (kParts == 2) {
        ptx::wgmma_m64k16<1>(sums, m[s][1].x, high, T{});
        ptx::wgmma_m64k16<1>(sums, m[s][0].x,
                             factor(panel + summary_part, 16 * s, Config::kPanelBytes), T{});
      }
    }
  }

  /// Adds the b of the unit's rows. A warp uses those up to its own 16 rows, and each of these rows
  /// the b before itself. Warps after the last row do nothing.
  MHLA_DEVICE void add_diagonal(const MixingUnit& unit, std::int32_t rows, std::uint32_t warp,
                                std::uint32_t lane, Sums& sums) const {
    if (64 * unit.row_tile + 16 * static_cast<std::int32_t>(warp) >= rows) return;
    if (index == 0) {
      MHLA_CUDA_UNROLL
      for (auto& tile : sums) {
        MHLA_CUDA_UNROLL
        for (float& x : tile) x = 0;
      }
    }
    MHLA_CUDA_LOOP
    for (std::uint32_t step = 0; step <= warp; ++step) {
      ptx::Words4 m[2] = {};  // the low part is 0 if there is none
      load_factors(unit, step, warp, lane, m);
      MHLA_CUDA_UNROLL
      for (std::uint32_t column = 0; column < kTiles / 4; ++column) {  // 32 columns each
        ptx::Words4 b[kParts][2];
        load_summaries(unit, step, column, lane, b);
        float(&tiles)[4][4] = reinterpret_cast<float(&)[4][4]>(sums[4 * column]);
        if (step == warp && any_not_finite<T>(b)) {
          multiply_earlier<T>(tiles, m[0], m[1], b, lane);
          continue;
        }
        multiply_add(tiles, m[0], b[0]);
        if constexpr (kParts == 2) {
          multiply_add(tiles, m[1], b[0]);
          multiply_add(tiles, m[0], b[1]);
        }
      }
    }
  }

  /// Loads A operands of 16 b for a warp's 16 rows of a unit.
  template <int kCount>
  MHLA_DEVICE void load_factors(const MixingUnit& unit, std::uint32_t step, std::uint32_t warp,
                                std::uint32_t lane, ptx::Words4 (&m)[kCount]) const {
    const TileCoord at = rows_coord(lane);
    MHLA_CUDA_UNROLL
    for (int part = 0; part < kParts; ++part) {
      m[part] = ptx::ldmatrix_x4(BoxPanel{factors + part * factor_part}.piece(
          64 * unit.item_tile + 16 * warp + at.row, 2 * step + at.piece));
    }
  }

  /// Loads B operands of 16 b and 32 columns of a unit.
  MHLA_DEVICE void load_summaries(const MixingUnit& unit, std::uint32_t step, std::uint32_t column,
                                  std::uint32_t lane, ptx::Words4 (&b)[kParts][2]) const {
    const TileCoord at = columns_coord(lane);
    MHLA_CUDA_UNROLL
    for (int part = 0; part < kParts; ++part) {
      const BoxPanel panel{summaries + part * summary_part +
                           (unit.panel + column / 2) * Config::kPanelBytes};
      MHLA_CUDA_UNROLL
      for (std::uint32_t h = 0; h < 2; ++h) {
        b[part][h] = ptx::ldmatrix_x4_trans(
            panel.piece(16 * step + at.row, column % 2 * 4 + 2 * h + at.piece));
      }
    }
  }

  static MHLA_DEVICE void multiply_add(float (&sums)[4][4], const ptx::Words4& a,
                                       const ptx::Words4 (&b)[2]) {
    MHLA_CUDA_UNROLL
    for (int j = 0; j < 4; ++j) {
      ptx::mma_m16n8k16<T>(sums[j], a.x[0], a.x[1], a.x[2], a.x[3], b[j / 2].x[j % 2 * 2],
                           b[j / 2].x[j % 2 * 2 + 1]);
    }
  }
};

}  // namespace mhla::cuda
