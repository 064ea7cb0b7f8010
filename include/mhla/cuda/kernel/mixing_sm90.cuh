#pragma once

/// \file
/// Mixtures of summaries by tensor copies and wgmma, for every pair, i = 0.. rows - 1:
///
///     S~_i = sum_b m_ib S_b     [D, E], rounded to T, or as high + low
///     z~_i = sum_b m_ib z_b     [D] floats, with m as it is
///
/// over all b < columns, or with `earlier` over b < i alone. Then S~_0 is 0 and is written.
///
/// S~ has the scale of S. The kernel computes out[rows, D*E] = m[rows, columns] in[columns, D*E],
/// with m rounded to T, or as high + low:
///
///     kSingle   m_high S
///     kPair     m_high S_high + m_low S_high + m_high S_low
///
/// A thread block stays on its multiprocessor and processes items (mixing_sm90_config.cuh). An item
/// is four units of 64 rows and 128 columns (kPair: 64), two for each of two warpgroups:
///
///     up to  64 rows    1 x 4 units     all rows in an item, S read once. Fewer columns where
///     up to 128 rows    2 x 2           multiprocessors would be idle
///     up to 256 rows    4 x 1
///     more              2 x 2           128 rows; other items read S again
///
/// Up to 256 rows all threads store m in shared memory once, if it fits. It fits up to [64, 512],
/// [128, 512], [256, 320], for kPair up to [64, 256], [128, 256], [256, 128]. Otherwise items are 2
/// x 2, and strips of m, already rounded (rounded_mixing.cuh), arrive with those of S.
///
/// Strips of 64 b arrive through a ring by tensor copies: panels of 64 columns of 64 b, zeros
/// before the first b and after the last. They are the factor B of wgmma. 64 rows of m are A, in
/// registers:
///
///     unit[64, 128] += m[64, 64] (A)  strip[64, 128] (B, in place)
///
/// Items go downward by pair, then columns, then rows. The summaries that were written last are
/// read first, while L2 has them. The mixtures of the first pairs are read out first, and are
/// written last. S that is read once leaves L2 first. A warp stores 16 rows of 64 columns of S~ per
/// tensor copy, which leaves out rows after the last. Warps after the producer mix the key sums
/// (key_sum_team.cuh).
///
/// Numbers that are not finite: a product with m_ib = 0 is still a product. An S_b with infinities
/// or NaN gives NaN in the same places of S~_i for every i. With `earlier` this affects only i > b.
/// Strips right of the diagonal are skipped. Each warp multiplies the 64 x 64 part of m on the
/// diagonal by mma.sync, up to its own 16 x 16. If 16 summaries there have such numbers, each row
/// is multiplied separately (tile/triangular_product.cuh). The bits of a row therefore do not
/// depend on later summaries.
///
///     shared memory    m | ring of S, or of S and m | buffers of key sums | 2048 bytes per warp,
///                      from which S~ is stored | barriers
///
/// Device memory: S and S~ once, m once per thread block. L2: S once for the rows of an item. If m
/// is not in shared memory: m once for the columns of an item. z once per 60 rows, and m for z once
/// per 64 columns. If m is not in shared memory, these are 48 rows and 128 columns. Source:
/// arXiv:2601.07832, section 4.1, eq. (4).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixing_loads.cuh"
#include "mhla/cuda/kernel/mixing_sm90_config.cuh"
#include "mhla/cuda/kernel/mixing_strip.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P>
struct MixingSm90 {
  using Params = MixingSm90Parameters;
  using Config = MixingSm90Config<D, E, P>;
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = Config::kBlocksPerMultiprocessor;
  static constexpr int kRegisters = 168;

  /// Fills all parameters but the maps, which describe `boxes`. Supports all problems.
  static constexpr bool prepare(const MixingParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, Params& p, TensorBox (&boxes)[6]) {
    p.stage = stage;
    p.pairs = pairs;
    p.items = Config::choose(stage, pairs, multiprocessors);
    // Where a matrix stays in shared memory, thread blocks have one item each if there are several.
    p.multiprocessors = stage.matrices > 1 && p.items.stays ? p.items.count : multiprocessors;
    boxes[0] = Loads::strip_box(p, stage.in.high);
    boxes[2] = Loads::row_box(p, stage.out.high);
    if (P == Precision::kPair) {
      boxes[1] = Loads::strip_box(p, stage.in.low);
      boxes[3] = Loads::row_box(p, stage.out.low);
    }
    if (!p.items.stays) {
      boxes[4] = Loads::factor_box(p, stage.rounded.high);
      if (P == Precision::kPair) boxes[5] = Loads::factor_box(p, stage.rounded.low);
    }
    return true;
  }

  static constexpr unsigned grid(const Params& p, int) {
    return persistent_grid<Config>(p.items.count, p.multiprocessors);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const MixingShare share = Config::share(p, static_cast<std::int32_t>(ptx::ctaid_x()),
                                            static_cast<std::int32_t>(ptx::nctaid_x()));
    const Rings rings = rings_of(p, share);
    run_persistent<Config>([&](std::uint32_t thread) { begin(p, rings, thread); },
                           [&](std::uint32_t thread) {
                             if (thread == Config::kProducer)
                               Loads::load(p, share, rings.summaries);
                             if (thread / 32 <= Config::kConsumers) return;
                             if (p.items.stays || p.stage.matrices > 1) {
                               mix_key_sums<typename Config::KeySums>(p, thread);
                             } else {
                               mix_key_sums<typename Config::LongKeySums>(p, thread);
                             }
                           },
                           [&](std::uint32_t thread) { mix(p, share, rings, thread); },
                           rings.summaries);
  }

 private:
  static constexpr int kParts = Config::kParts;
  using Strip = MixingStrip<T, D, E, P>;
  using Loads = MixingLoads<D, E, P>;

  struct Rings {
    Ring summaries;         ///< each strip followed by m, unless m stays
    std::uint32_t factors;  ///< shared address of m if it stays, strip by strip
  };

  static MHLA_DEVICE Rings rings_of(const Params& p, const MixingShare& share) {
    const auto slot = static_cast<std::uint32_t>(Config::ring_bytes(p.items));
    const auto count = static_cast<std::uint32_t>(share.slots);
    const std::uint32_t begin = ptx::shared_begin();
    const auto kept =
        static_cast<std::uint32_t>(Config::kept_strips(p) * Config::factor_bytes(p.items));
    return {{begin + kept, slot, Config::barriers(begin), count}, begin};
  }

  /// A strip of S in a slot of the ring, and its strip of m.
  static MHLA_DEVICE Strip strip_at(const Params& p, std::int32_t index, const Rings& rings,
                                    RingCursor at) {
    const auto summaries = static_cast<std::uint32_t>(Config::slot_bytes(p.items));
    const auto factors = static_cast<std::uint32_t>(Config::factor_bytes(p.items));
    const std::uint32_t slot = rings.summaries.slot(at);
    const std::uint32_t kept = rings.factors + static_cast<std::uint32_t>(index) * factors;
    return {index, slot, summaries / kParts, p.items.stays ? kept : slot + summaries,
            factors / kParts};
  }

  /// Stores m if it stays in shared memory. All threads call.
  static MHLA_DEVICE void begin(const Params& p, const Rings& rings, std::uint32_t thread) {
    if (thread == Config::kProducer) {
      MHLA_CUDA_UNROLL
      for (int part = 0; part < kParts; ++part) {
        ptx::prefetch_tensormap(p.maps[part]);
        ptx::prefetch_tensormap(p.maps[2 + part]);
        if (!p.items.stays) ptx::prefetch_tensormap(p.maps[4 + part]);
      }
    }
    if (!p.items.stays) return;
    const std::int32_t item = p.items.count - 1 - static_cast<std::int32_t>(ptx::ctaid_x());
    const MixingArray mixing = p.stage.matrix(item * Config::panels(p.items) / Config::kPairPanels);
    MHLA_CUDA_LOOP
    for (std::int32_t strip = 0; strip < Config::kept_strips(p); ++strip) {
      strip_at(p, strip, rings, {})
          .template store_factors<kThreads / 32>(p.stage, mixing, thread / 32, thread % 32);
    }
  }

  /// Mixes key sums in the warps after the producer's. Parts of all pairs are taken in steps of the
  /// grid, as items are (for_items). Parts of the last rows use most b, and come first.
  template <class KeySums>
  static MHLA_DEVICE void mix_key_sums(const Params& p, std::uint32_t thread) {
    if (p.stage.out.key_sum == nullptr) return;
    const std::int32_t columns = ((p.pairs - 1) / KeySums::kPairs + 1) * KeySums::kColumnGroups;
    const std::int32_t parts = columns * ((p.stage.rows - 1) / KeySums::kRows + 1);
    const auto block = static_cast<std::int32_t>(ptx::ctaid_x());
    const auto step = static_cast<std::int32_t>(ptx::nctaid_x());
    bool turned = false;
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; first < parts; first += step, turned = !turned) {
      const std::int32_t offset = turned ? step - 1 - block : block;
      if (first + offset >= parts) continue;
      const std::int32_t upward = parts - 1 - first - offset;
      const std::int32_t at = upward % columns;
      KeySums{p.stage,
              p.pairs,
              at / KeySums::kColumnGroups * KeySums::kPairs,
              at % KeySums::kColumnGroups * (D / KeySums::kColumnGroups),
              upward / columns * KeySums::kRows,
              ptx::shared_begin() + Config::kSums,
              thread - Config::kProducer - 32}
          .run();
    }
  }

  static MHLA_DEVICE void mix(const Params& p, const MixingShare& share, const Rings& rings,
                              std::uint32_t thread) {
    const std::uint32_t warp = thread / 32, lane = thread % 32;
    const std::uint32_t group = ptx::shfl_idx(warp / 4, 0);  // warp-uniform for ptxas
    const Ring& ring = rings.summaries;
    RingCursor at;
    Config::for_items(p, share, [&](const MixingItem& item) {
      const MixingUnit units[] = {Config::unit(p, item, group, 0), Config::unit(p, item, group, 1)};
      typename Strip::Sums sums[Config::kUnits];
      MHLA_CUDA_LOOP
      for (std::int32_t strip = 0; strip < item.strips; ++strip) {
        ring.consumer_wait(at);
        const Strip loaded = strip_at(p, strip, rings, at);
        if (kParts == 1 && p.items.tiles_log2 < 2) {  // same rows; two parts take registers
          loaded.template add_to<Config::kUnits>(units, p.stage, warp % 4, lane, sums);
        } else {
          MHLA_CUDA_UNROLL
          for (int j = 0; j < Config::kUnits; ++j) {
            loaded.template add_to<1>(units + j, p.stage, warp % 4, lane, sums + j);
          }
        }
        ring.consumer_release(at, lane);
        at = at.after(1, ring.count);
      }
      MHLA_CUDA_UNROLL
      for (int j = 0; j < Config::kUnits; ++j) write(p, item, units[j], warp, lane, sums[j]);
    });
    if (lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
  }

  static MHLA_DEVICE void write(const Params& p, const MixingItem& item, const MixingUnit& unit,
                                std::uint32_t warp, std::uint32_t lane,
                                typename Strip::Sums& sums) {
    // The fence keeps addresses from being computed early, since products need the registers.
    std::uint32_t fenced[] = {lane};
    ptx::fence_registers(fenced);
    const std::int32_t row = 64 * unit.row_tile + 16 * static_cast<std::int32_t>(warp % 4);
    if (row >= p.stage.rows) return;
    const WarpTile tile = Config::tile(warp);
    const std::int32_t panel =
        item.panel % Config::kPairPanels + static_cast<std::int32_t>(unit.panel);
    const std::int32_t pair = item.panel / Config::kPairPanels;
    MHLA_CUDA_UNROLL
    for (int part = 0; part < kParts; ++part) {
      if (part == 1) keep_rest<T>(sums);
      store_tiles<T>(sums, {1, 1}, tile, fenced[0], [&](int column) {
        ptx::cp_async_bulk_tensor_store(p.maps[2 + part], {{0, row, panel + column / 64, pair, 0}},
                                        tile.begin);
      });
    }
  }
};

}  // namespace mhla::cuda
