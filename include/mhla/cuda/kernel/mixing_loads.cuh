#pragma once

/// \file
/// What mixing_sm90.cuh copies: boxes of summaries, mixtures and coefficients, and their way in.
///
///     S     panels of 64 columns of a strip, split evenly among the thread blocks of a cluster,
///           each of which loads its part for all of them
///     m     where it does not stay, strips of a block's own rows, as far as those need them

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
    const std::int32_t columns = p.stage.columns;
    const auto row = 2 * static_cast<std::uint64_t>(RoundedMixing::stride(columns));
    const auto rows = static_cast<std::uint32_t>(Config::factor_bytes(p.items, p.items.own_log2)) /
                      (kParts * 128);
    return {
        part,
        {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(p.stage.rows), 1, 1, 1},
        {row, row, row, row},
        {64, rows, 1, 1, 1}};
  }

  /// All strips of all items, by one thread.
  static MHLA_DEVICE void load(const Params& p, const MixingShare& share, const ClusterRing& ring) {
    const auto summaries = static_cast<std::uint32_t>(Config::slot_bytes(share.own_log2));
    RingCursor at;
    Config::for_items(p, share, [&](const MixingItem& item) {
      MHLA_CUDA_LOOP
      for (std::int32_t strip = 0; strip < item.strips; ++strip) {
        const bool with_factors = !p.items.stays && strip < item.own;
        ring.producer_acquire(at, with_factors ? ring.slot_bytes : summaries);
        load_summaries(p, share, item, strip, ring.slot(at), ring.full(at));
        if (with_factors) load_factors(p, item, strip, ring.slot(at) + summaries, ring.full(at));
        at = at.after(1, ring.count);
      }
    });
  }

 private:
  /// The block's part of a strip.
  static MHLA_DEVICE void load_summaries(const Params& p, const MixingShare& share,
                                         const MixingItem& item, std::int32_t strip,
                                         std::uint32_t to, std::uint32_t full) {
    const std::int32_t step = Config::box_panels(p.items), panels = Config::panels(share.own_log2);
    const std::int32_t count = kParts * panels >> p.items.cluster_log2;  // of both parts
    const std::int32_t pair = item.panel / Config::kPairPanels;
    const std::int32_t panel = item.panel % Config::kPairPanels;
    const std::int32_t summary = Config::kStrip * strip - p.stage.mixing.lead;
    MHLA_CUDA_LOOP
    for (std::int32_t i = share.rank * count; i < (share.rank + 1) * count; i += step) {
      const std::int32_t part = i < panels ? 0 : 1;
      const TensorMap& map = p.maps[part];
      const BoxOrigin from{{0, summary, panel + i - part * panels, pair, 0}};
      const std::uint32_t box = to + static_cast<std::uint32_t>(i) * Config::kPanelBytes;
      if (p.items.cluster_log2 > 0) {
        const auto blocks = static_cast<std::uint16_t>((1 << (1 << p.items.cluster_log2)) - 1);
        ptx::cp_async_bulk_tensor_multicast(box, map, from, full, blocks);
      } else if (p.items.rows.value() == 1) {  // nobody reads it again
        ptx::cp_async_bulk_tensor(box, map, from, full, ptx::createpolicy_evict_first());
      } else {
        ptx::cp_async_bulk_tensor(box, map, from, full);
      }
    }
  }

  static MHLA_DEVICE void load_factors(const Params& p, const MixingItem& item, std::int32_t strip,
                                       std::uint32_t to, std::uint32_t full) {
    const auto bytes = static_cast<std::uint32_t>(Config::factor_bytes(p.items, item.own_log2));
    MHLA_CUDA_UNROLL
    for (std::uint32_t part = 0; part < kParts; ++part) {
      ptx::cp_async_bulk_tensor(to + part * (bytes / kParts), p.maps[4 + part],
                                {{Config::kStrip * strip, 64 * item.row_tile, 0, 0, 0}}, full);
    }
  }
};

}  // namespace mhla::cuda
