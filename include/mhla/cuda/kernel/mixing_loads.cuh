#pragma once

/// \file
/// What mixing_sm90.cuh copies: boxes of summaries, mixtures and coefficients, and their way in.
///
///     S     panels of 64 columns of a strip, split evenly among thread blocks of a cluster one
///           below another, each of which loads its part for all of them
///     m     where it does not stay, strips of a block's two row tiles, as far as those need them,
///           split among thread blocks that are side by side

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixing_sm90_config.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/cluster_ring.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace mhla::cuda {

template <int D, int E, Precision P>
struct MixingLoads {
  using Params = MixingSm90Parameters;
  using Config = MixingSm90Config<D, E, P>;
  static constexpr int kParts = Config::kParts;

  /// Summaries of a pair as panels of 64 columns: boxes of so many summaries and panels.
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
    return box(p.stage.in, part, summaries, p.pairs, Config::kStrip, Config::box_panels(p.items));
  }
  static constexpr TensorBox row_box(const Params& p, unsigned char* part) {
    return box(p.stage.out, part, p.stage.rows, p.pairs, WarpTile::kRows, 1);
  }

  static constexpr TensorBox factor_box(const Params& p, unsigned char* part) {
    const auto columns = static_cast<std::uint64_t>(p.stage.columns);
    const auto row = 2 * static_cast<std::uint64_t>(RoundedMixing::stride(p.stage.columns));
    return {part,
            {columns, static_cast<std::uint64_t>(p.stage.rows), 1, 1, 1},
            {row, row, row, row},
            {64, 64, 1, 1, 1}};
  }

  /// All strips of all items, by one thread.
  static MHLA_DEVICE void load(const Params& p, const MixingShare& share, const ClusterRing& ring) {
    const auto summaries = static_cast<std::uint32_t>(Config::slot_bytes(p.items));
    RingCursor at;
    Config::for_items(p, share, [&](const MixingItem& item) {
      const std::int32_t own[] = {Config::tile_strips(p, item.row_tile),
                                  Config::tile_strips(p, item.row_tile + item.row_step)};
      MHLA_CUDA_LOOP
      for (std::int32_t strip = 0; strip < item.strips; ++strip) {
        std::uint32_t bytes = summaries;
        if (!p.items.stays) {
          bytes += strip < own[0] ? Config::kTileBytes : 0;
          bytes += strip < own[1] ? Config::kTileBytes : 0;
        }
        ring.producer_acquire(at, bytes);
        load_summaries(p, share, item, strip, ring.slot(at), ring.full(at));
        if (!p.items.stays) {
          load_factors(p, share, item, own, strip, ring.slot(at) + summaries, ring.full(at));
        }
        at = at.after(1, ring.count);
      }
    });
  }

 private:
  /// The block's part of a strip.
  static MHLA_DEVICE void load_summaries(const Params& p, const MixingShare& share,
                                         const MixingItem& item, std::int32_t strip,
                                         std::uint32_t to, std::uint32_t full) {
    const MixingItems& items = p.items;
    const std::int32_t step = Config::box_panels(items), panels = Config::panels(items);
    const std::int32_t count = kParts * panels >> items.below_log2;  // of both parts
    const std::int32_t above = Config::above(items, share);
    const std::int32_t pair = item.panel / Config::kPairPanels;
    const std::int32_t panel = item.panel % Config::kPairPanels;
    const std::int32_t summary = Config::kStrip * strip - p.stage.mixing.lead;
    MHLA_CUDA_LOOP
    for (std::int32_t i = above * count; i < (above + 1) * count; i += step) {
      const std::int32_t part = i < panels ? 0 : 1;
      const TensorMap& map = p.maps[part];
      const BoxOrigin from{{0, summary, panel + i - part * panels, pair, 0}};
      const std::uint32_t box = to + static_cast<std::uint32_t>(i) * Config::kPanelBytes;
      if (items.below_log2 > 0) {
        const int blocks = (1 << (1 << items.below_log2)) - 1;
        const int first = Config::beside(items, share) << items.below_log2;
        ptx::cp_async_bulk_tensor_multicast(box, map, from, full,
                                            static_cast<std::uint16_t>(blocks << first));
      } else if (items.rows.value() == 1) {  // nobody reads it again
        ptx::cp_async_bulk_tensor(box, map, from, full, ptx::createpolicy_evict_first());
      } else {
        ptx::cp_async_bulk_tensor(box, map, from, full);
      }
    }
  }

  /// The block's part of a strip of m, of which row tile t counts the first own[t].
  static MHLA_DEVICE void load_factors(const Params& p, const MixingShare& share,
                                       const MixingItem& item, const std::int32_t (&own)[2],
                                       std::int32_t strip, std::uint32_t to, std::uint32_t full) {
    const MixingItems& items = p.items;
    const auto part_bytes = static_cast<std::uint32_t>(Config::factor_bytes(items) / kParts);
    MHLA_CUDA_UNROLL
    for (std::int32_t t = 0; t < 2; ++t) {
      if (strip >= own[t] || (items.beside_log2 > 0 && t != Config::beside(items, share))) continue;
      MHLA_CUDA_UNROLL
      for (std::uint32_t part = 0; part < kParts; ++part) {
        const TensorMap& map = p.maps[4 + part];
        const std::uint32_t box = to + part * part_bytes + static_cast<std::uint32_t>(t) * 64 * 128;
        const BoxOrigin from{
            {Config::kStrip * strip, 64 * (item.row_tile + t * item.row_step), 0, 0, 0}};
        if (items.beside_log2 > 0) {
          const int blocks = 1 | 1 << (1 << items.below_log2);
          ptx::cp_async_bulk_tensor_multicast(
              box, map, from, full,
              static_cast<std::uint16_t>(blocks << Config::above(items, share)));
        } else {
          ptx::cp_async_bulk_tensor(box, map, from, full);
        }
      }
    }
  }
};

}  // namespace mhla::cuda
