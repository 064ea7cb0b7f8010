#pragma once

/// \file
/// Boxes of summaries, mixtures and coefficients of mixing_sm90.cuh, and the producer that loads
/// them:
///
///     S     the item's columns of a strip, panels of 64
///     m     unless it stays in shared memory: strips of the item's two row tiles, where they use b

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixing_sm90_config.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace mhla::cuda {

template <int D, int E, Precision P>
struct MixingLoads {
  using Params = MixingSm90Parameters;
  using Config = MixingSm90Config<D, E, P>;
  static constexpr int kParts = Config::kParts;

  /// Box of `rows` summaries and `panels` panels of 64 columns of a pair's summaries.
  static constexpr TensorBox box(const SummaryArray& array, unsigned char* part,
                                 std::int32_t summaries, std::int32_t pairs, std::int32_t rows,
                                 std::int32_t panels) {
    constexpr std::uint64_t kSummary = 2 * D * E;
    const auto of_pair = static_cast<std::uint64_t>(array.first(1, summaries)) * kSummary;
    return {part,
            {64, static_cast<std::uint64_t>(summaries), D * E / 64,
             static_cast<std::uint64_t>(pairs), 1},
            {kSummary, 128, of_pair, of_pair},
            {64, static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(panels), 1, 1}};
  }
  static constexpr TensorBox strip_box(const Params& p, unsigned char* part) {
    const std::int32_t summaries = p.stage.columns - p.stage.mixing.lead;
    return box(p.stage.in, part, summaries, p.pairs, Config::kStrip, Config::panels(p.items));
  }
  static constexpr TensorBox row_box(const Params& p, unsigned char* part) {
    return box(p.stage.out, part, p.stage.rows, p.pairs, WarpTile::kRows, 1);
  }

  static constexpr TensorBox factor_box(const Params& p, unsigned char* part) {
    const auto columns = static_cast<std::uint64_t>(p.stage.columns);
    const auto rows = static_cast<std::uint64_t>(p.stage.rows);
    const auto row = 2 * static_cast<std::uint64_t>(RoundedMixing::stride(p.stage.columns));
    return {part,
            {columns, rows, static_cast<std::uint64_t>(p.stage.matrices), 1, 1},
            {row, rows * row, rows * row, rows * row},
            {64, 64, 1, 1, 1}};
  }

  /// Loads all strips of all items. One thread calls.
  static MHLA_DEVICE void load(const Params& p, const MixingShare& share, const Ring& ring) {
    const auto summaries = static_cast<std::uint32_t>(Config::slot_bytes(p.items));
    RingCursor at;
    Config::for_items(p, share, [&](const MixingItem& item) {
      const std::int32_t tile_strips[] = {Config::tile_strips(p, item.row_tile),
                                          Config::tile_strips(p, item.row_tile + 1)};
      MHLA_CUDA_LOOP
      for (std::int32_t strip = 0; strip < item.strips; ++strip) {
        std::uint32_t bytes = summaries;
        if (!p.items.stays) {
          bytes += strip < tile_strips[0] ? Config::kTileBytes : 0;
          bytes += strip < tile_strips[1] ? Config::kTileBytes : 0;
        }
        ring.producer_acquire(at, bytes);
        load_summaries(p, item, strip, ring.slot(at), ring.full(at));
        if (!p.items.stays) {
          load_factors(p, item, tile_strips, strip, ring.slot(at) + summaries, ring.full(at));
        }
        at = at.after(1, ring.count);
      }
    });
  }

 private:
  static MHLA_DEVICE void load_summaries(const Params& p, const MixingItem& item,
                                         std::int32_t strip, std::uint32_t to, std::uint32_t full) {
    const auto part_bytes = static_cast<std::uint32_t>(Config::slot_bytes(p.items) / kParts);
    const BoxOrigin from{{0, Config::kStrip * strip - p.stage.mixing.lead,
                          item.panel % Config::kPairPanels, item.panel / Config::kPairPanels, 0}};
    MHLA_CUDA_UNROLL
    for (std::uint32_t part = 0; part < kParts; ++part) {
      const TensorMap& map = p.maps[part];
      const std::uint32_t box = to + part * part_bytes;
      if (p.items.rows.value() == 1) {  // no later item reads it
        ptx::cp_async_bulk_tensor(box, map, from, full, ptx::createpolicy_evict_first());
      } else {
        ptx::cp_async_bulk_tensor(box, map, from, full);
      }
    }
  }

  /// Loads a strip of m. Row tile t uses the first tile_strips[t] strips.
  static MHLA_DEVICE void load_factors(const Params& p, const MixingItem& item,
                                       const std::int32_t (&tile_strips)[2], std::int32_t strip,
                                       std::uint32_t to, std::uint32_t full) {
    const auto part_bytes = static_cast<std::uint32_t>(Config::factor_bytes(p.items) / kParts);
    const std::int32_t matrix =
        p.stage.matrices == 1 ? 0 : item.panel / Config::kPairPanels % p.stage.matrices;
    MHLA_CUDA_UNROLL
    for (std::int32_t t = 0; t < 2; ++t) {
      if (strip >= tile_strips[t]) continue;
      MHLA_CUDA_UNROLL
      for (std::uint32_t part = 0; part < kParts; ++part) {
        const TensorMap& map = p.maps[4 + part];
        const std::uint32_t box = to + part * part_bytes + static_cast<std::uint32_t>(t) * 64 * 128;
        const BoxOrigin from{{Config::kStrip * strip, 64 * (item.row_tile + t), matrix, 0, 0}};
        ptx::cp_async_bulk_tensor(box, map, from, full);
      }
    }
  }
};

}  // namespace mhla::cuda
