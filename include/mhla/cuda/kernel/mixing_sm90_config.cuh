#pragma once

/// \file
/// Sizes, shared memory and items of mixing_sm90.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/key_sum_team.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"

namespace mhla::cuda {

/// Mixtures of up to four row tiles, of as many columns as make four units.
struct MixingItem {
  std::int32_t panel;     ///< the first, of 64 columns, counted through all pairs
  std::int32_t row_tile;  ///< the first, of 64 rows
  std::int32_t strips;    ///< of 64 b, all that count for one of its rows
  std::uint32_t turn;     ///< 1 where warpgroups have the units that the other one had before, or 0
};

/// 64 rows and 64 or 128 columns of an item.
struct MixingUnit {
  std::int32_t row_tile;  ///< of the matrix
  std::uint32_t own_row;  ///< counted through the item's
  std::uint32_t panel;    ///< likewise
  std::int32_t whole;     ///< strips that count for all its rows: the first ones
};

/// How many there are, and how large they are.
struct MixingItems {
  std::int32_t count;
  std::int32_t row_tiles;  ///< of 64 rows, of the matrix
  std::int32_t strips;     ///< of 64 b
  std::int32_t own_log2;   ///< 2^this row tiles are in an item: 1, 2 or 4
  Divisor rows;            ///< items that have all rows of their columns
  bool stays;              ///< items have all rows, m is in shared memory
};

/// What a thread block does.
struct MixingShare {
  std::int32_t slots;  ///< of strips of S, in shared memory
  std::int32_t first;  ///< item
  std::int32_t step;
};

struct MixingSm90Parameters {
  /// Of strips of S and of its low part; of 16 rows of S~ and its low part; of strips of m and its
  /// low part, where m does not stay in shared memory.
  TensorMap maps[6];
  MixingParameters stage;
  MixingItems items;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< of the device
};

/// Two warpgroups and a multiprocessor to itself, whatever the widths.
template <int D, int E, Precision P>
struct MixingSm90Config : PersistentConfig<128, 128, true> {
  static constexpr int kWriters = 3;  // warps behind the producer's, for key sums

  static constexpr int kParts = P == Precision::kPair ? 2 : 1;
  static constexpr int kConsumerRegisters = 192;
  static constexpr int kProducerRegisters = 120;  // for key sums
  static constexpr int kStrip = 64;               // b
  static constexpr int kUnits = 2;                // of a warpgroup
  static constexpr int kItemUnits = kUnits * kWarpgroups;
  static constexpr int kPanels = 2 / kParts;  // of a unit
  static constexpr int kPairPanels = D * E / 64;
  static constexpr int kPanelBytes = kStrip * 128;  // 64 columns of a strip of S
  static constexpr int kUnitBytes = kParts * kPanels * kPanelBytes;
  static constexpr int kTileBytes = kParts * 64 * 128;  // 64 rows of a strip of m
  static constexpr int kColumnItems = D * E / (64 * kPanels * kItemUnits);  // of 64 rows
  static_assert(kColumnItems * 64 * kPanels * kItemUnits == D * E, "no item is ragged");

  using KeySums = KeySumTeam<D, kWriters, 64>;
  using LongKeySums = KeySumTeam<D, kWriters, 128>;  // where m does not stay

  // The rings, and what mixtures of key sums pass through.
  static constexpr int kSums = MixingSm90Config::kRingBytes - LongKeySums::kBytes;
  static constexpr int kMostSlots = 32;
  static_assert(kMostSlots * Ring::kBarrierBytes <= MixingSm90Config::kBarrierBytes);

  /// Panels of a strip of S, its bytes, and those of a strip of m.
  static MHLA_HOST_DEVICE constexpr std::int32_t panels(const MixingItems& items) {
    return kPanels * kItemUnits >> items.own_log2;
  }
  static MHLA_HOST_DEVICE constexpr std::int32_t slot_bytes(const MixingItems& items) {
    return kUnitBytes * kItemUnits >> items.own_log2;
  }
  static MHLA_HOST_DEVICE constexpr std::int32_t factor_bytes(const MixingItems& items) {
    const std::int32_t own = 1 << items.own_log2;
    return (items.row_tiles < own ? items.row_tiles : own) * kTileBytes;
  }
  /// Bytes of a slot of the ring: a strip of S, and one of m behind it where that does not stay.
  static MHLA_HOST_DEVICE constexpr std::int32_t ring_bytes(const MixingItems& items) {
    return slot_bytes(items) + (items.stays ? 0 : factor_bytes(items));
  }
  /// Slots beside so many strips of m that stay.
  static MHLA_HOST_DEVICE constexpr std::int32_t slots(const MixingItems& items,
                                                       std::int32_t strips) {
    const std::int32_t count = (kSums - strips * factor_bytes(items)) / ring_bytes(items);
    return count < kMostSlots ? count : kMostSlots;
  }

  /// All rows in one item if m and two strips of S fit: few rows have many columns, unless
  /// multiprocessors would be idle then. Otherwise 128.
  static constexpr MixingItems choose(const MixingParameters& p, std::int32_t pairs,
                                      std::int32_t multiprocessors) {
    MixingItems items{.count = 0,
                      .row_tiles = (p.rows + 63) / 64,
                      .strips = (p.columns + kStrip - 1) / kStrip,
                      .own_log2 = 0,
                      .rows = Divisor(1),
                      .stays = true};
    while ((1 << items.own_log2) < items.row_tiles && items.own_log2 < 2) ++items.own_log2;
    items.stays = items.row_tiles <= kItemUnits && items.strips <= kMostSlots &&
                  slots(items, items.strips) >= 2;
    if (items.stays) {
      const std::int32_t widest = pairs * kColumnItems;
      while (items.own_log2 < 2 && widest << items.own_log2 < multiprocessors) ++items.own_log2;
    } else {
      items.own_log2 = 1;
      items.rows = Divisor((items.row_tiles + 1) / 2);
    }
    items.count = columns(items, pairs) * items.rows.value();
    return items;
  }

  /// Items that have the same row tiles.
  static MHLA_HOST_DEVICE constexpr std::int32_t columns(const MixingItems& items,
                                                         std::int32_t pairs) {
    return pairs * (kColumnItems << items.own_log2);
  }
  /// Strips before that of row 0's own block.
  static MHLA_HOST_DEVICE constexpr std::int32_t strips_before(const MixingSm90Parameters& p) {
    return p.stage.mixing.before / kStrip;
  }
  /// Strips that count for one of the rows before row tile `end`.
  static MHLA_HOST_DEVICE constexpr std::int32_t strips(const MixingSm90Parameters& p,
                                                        std::int32_t end) {
    const MixingItems& items = p.items;
    const std::int32_t needed = strips_before(p) + (end < items.row_tiles ? end : items.row_tiles);
    return p.stage.earlier && needed < items.strips ? needed : items.strips;
  }
  /// Those of a row tile, none if there is none.
  static MHLA_HOST_DEVICE constexpr std::int32_t tile_strips(const MixingSm90Parameters& p,
                                                             std::int32_t row_tile) {
    return row_tile < p.items.row_tiles ? strips(p, row_tile + 1) : 0;
  }
  /// Those of m that stay.
  static MHLA_HOST_DEVICE constexpr std::int32_t kept_strips(const MixingSm90Parameters& p) {
    return p.items.stays ? strips(p, p.items.row_tiles) : 0;
  }

  /// That of thread block `block` of so many.
  static MHLA_HOST_DEVICE constexpr MixingShare share(const MixingSm90Parameters& p,
                                                      std::int32_t block, std::int32_t blocks) {
    return {slots(p.items, kept_strips(p)), block, blocks};
  }

  /// Calls visit(item) for the items of a thread block: by pair, columns, rows, all three downward,
  /// in steps of the grid, every other step in the opposite order of thread blocks and of
  /// warpgroups, so that those with many earlier b meet all in turn.
  template <class Visit>
  static MHLA_DEVICE void for_items(const MixingSm90Parameters& p, const MixingShare& share,
                                    const Visit& visit) {
    const MixingItems& items = p.items;
    std::uint32_t turn = 0;
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; first < items.count; first += share.step, turn ^= 1) {
      const std::int32_t own = turn == 0 ? share.first : share.step - 1 - share.first;
      if (first + own >= items.count) continue;
      const std::int32_t upward = items.count - 1 - first - own;
      const std::int32_t at = items.rows.quotient(upward);
      visit(item(p, at, upward - at * items.rows.value(), turn));
    }
  }

  /// Unit `index` of a warpgroup.
  static MHLA_HOST_DEVICE constexpr MixingUnit unit(const MixingSm90Parameters& p,
                                                    const MixingItem& item, std::uint32_t group,
                                                    std::uint32_t index) {
    const MixingItems& items = p.items;
    const std::uint32_t number = (group ^ item.turn) + kWarpgroups * index;
    const std::uint32_t own = number & ((1u << items.own_log2) - 1);
    const std::int32_t row = item.row_tile + static_cast<std::int32_t>(own);
    const std::uint32_t panel = (number >> items.own_log2) * kPanels;
    const std::int32_t diagonal = p.stage.earlier ? strips_before(p) + row : item.strips;
    const std::int32_t whole = diagonal < item.strips ? diagonal : item.strips;
    return {row, own, panel, row < items.row_tiles ? whole : 0};
  }

 private:
  /// Columns `at` of all pairs, and group `group` of their rows.
  static MHLA_HOST_DEVICE constexpr MixingItem item(const MixingSm90Parameters& p, std::int32_t at,
                                                    std::int32_t group, std::uint32_t turn) {
    const std::int32_t log2 = p.items.own_log2;
    return {at * panels(p.items), group << log2, strips(p, (group + 1) << log2), turn};
  }
};

}  // namespace mhla::cuda
