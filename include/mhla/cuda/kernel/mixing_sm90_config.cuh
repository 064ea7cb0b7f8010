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

/// Mixtures of up to four row tiles, with as many columns as make four units.
struct MixingItem {
  std::int32_t panel;     ///< first panel of 64 columns, counted through all pairs
  std::int32_t row_tile;  ///< first tile of 64 rows
  std::int32_t strips;    ///< strips of 64 b that any of its rows uses
  std::uint32_t turn;     ///< 1 if the warpgroups swap units, otherwise 0
};

/// A unit: 64 rows and 64 or 128 columns of an item.
struct MixingUnit {
  std::int32_t row_tile;    ///< counted from the matrix's first
  std::uint32_t item_tile;  ///< counted from the item's first
  std::uint32_t panel;      ///< counted from the item's first
  std::int32_t whole;       ///< number of first strips that all its rows use
};

/// Number and size of the items.
struct MixingItems {
  std::int32_t count;
  std::int32_t row_tiles;   ///< tiles of 64 rows of the matrix
  std::int32_t strips;      ///< strips of 64 b
  std::int32_t tiles_log2;  ///< an item has 2^tiles_log2 row tiles: 1, 2 or 4
  Divisor rows;             ///< number of items that have the same columns
  bool stays;               ///< items have all rows, and m stays in shared memory
};

/// Share of a thread block.
struct MixingShare {
  std::int32_t slots;  ///< slots for strips of S in shared memory
  std::int32_t first;  ///< first item
  std::int32_t step;
};

struct MixingSm90Parameters {
  /// Tensor maps, for the high and low part each: strips of S; 16 rows of S~; strips of m, unless
  /// it stays in shared memory.
  TensorMap maps[6];
  MixingParameters stage;
  MixingItems items;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< multiprocessors of the device
};

/// Two warpgroups, and one thread block per multiprocessor, for all widths.
template <int D, int E, Precision P>
struct MixingSm90Config : PersistentConfig<128, 128, true> {
  static constexpr int kWriters = 3;  // warps after the producer's, for key sums

  static constexpr int kParts = P == Precision::kPair ? 2 : 1;
  static constexpr int kConsumerRegisters = 192;
  static constexpr int kProducerRegisters = 120;  // for key sums
  static constexpr int kStrip = 64;               // b
  static constexpr int kUnits = 2;                // units per warpgroup
  static constexpr int kItemUnits = kUnits * kWarpgroups;
  static constexpr int kPanels = 2 / kParts;  // panels per unit
  static constexpr int kPairPanels = D * E / 64;
  static constexpr int kPanelBytes = kStrip * 128;  // 64 columns of a strip of S
  static constexpr int kUnitBytes = kParts * kPanels * kPanelBytes;
  static constexpr int kTileBytes = kParts * 64 * 128;  // 64 rows of a strip of m
  static constexpr int kColumnItems = D * E / (64 * kPanels * kItemUnits);  // items per 64 rows
  static_assert(kColumnItems * 64 * kPanels * kItemUnits == D * E, "no item is ragged");

  using KeySums = KeySumTeam<D, kWriters, 64>;
  using LongKeySums = KeySumTeam<D, kWriters, 128>;  // if m does not stay

  // Offset of the buffers of key sums, after the rings.
  static constexpr int kSums = MixingSm90Config::kRingBytes - LongKeySums::kBytes;
  static constexpr int kMostSlots = 32;
  static_assert(kMostSlots * Ring::kBarrierBytes <= MixingSm90Config::kBarrierBytes);

  /// Panels of a strip of S. slot_bytes() are its bytes, factor_bytes() the bytes of a strip of m.
  static MHLA_HOST_DEVICE constexpr std::int32_t panels(const MixingItems& items) {
    return kPanels * kItemUnits >> items.tiles_log2;
  }
  static MHLA_HOST_DEVICE constexpr std::int32_t slot_bytes(const MixingItems& items) {
    return kUnitBytes * kItemUnits >> items.tiles_log2;
  }
  static MHLA_HOST_DEVICE constexpr std::int32_t factor_bytes(const MixingItems& items) {
    const std::int32_t most = 1 << items.tiles_log2;
    return (items.row_tiles < most ? items.row_tiles : most) * kTileBytes;
  }
  /// Bytes of a slot of the ring: a strip of S, followed by a strip of m unless m stays.
  static MHLA_HOST_DEVICE constexpr std::int32_t ring_bytes(const MixingItems& items) {
    return slot_bytes(items) + (items.stays ? 0 : factor_bytes(items));
  }
  /// Slots of the ring beside `strips` strips of m that stay.
  static MHLA_HOST_DEVICE constexpr std::int32_t slots(const MixingItems& items,
                                                       std::int32_t strips) {
    const std::int32_t count = (kSums - strips * factor_bytes(items)) / ring_bytes(items);
    return count < kMostSlots ? count : kMostSlots;
  }

  /// Chooses the items. If m and two strips of S fit into shared memory, an item has all rows. With
  /// few rows it has many columns, unless multiprocessors would be idle. Otherwise items have 128
  /// rows.
  static constexpr MixingItems choose(const MixingParameters& p, std::int32_t pairs,
                                      std::int32_t multiprocessors) {
    MixingItems items{.count = 0,
                      .row_tiles = (p.rows + 63) / 64,
                      .strips = (p.columns + kStrip - 1) / kStrip,
                      .tiles_log2 = 0,
                      .rows = Divisor(1),
                      .stays = true};
    while ((1 << items.tiles_log2) < items.row_tiles && items.tiles_log2 < 2) ++items.tiles_log2;
    items.stays = items.row_tiles <= kItemUnits && items.strips <= kMostSlots &&
                  slots(items, items.strips) >= 2;
    if (items.stays) {
      const std::int32_t widest = pairs * kColumnItems;
      while (items.tiles_log2 < 2 && widest << items.tiles_log2 < multiprocessors)
        ++items.tiles_log2;
    } else {
      items.tiles_log2 = 1;
      items.rows = Divisor((items.row_tiles + 1) / 2);
    }
    items.count = columns(items, pairs) * items.rows.value();
    return items;
  }

  /// Number of items with the same row tiles.
  static MHLA_HOST_DEVICE constexpr std::int32_t columns(const MixingItems& items,
                                                         std::int32_t pairs) {
    return pairs * (kColumnItems << items.tiles_log2);
  }
  /// Number of strips before the strip of row 0's block.
  static MHLA_HOST_DEVICE constexpr std::int32_t strips_before(const MixingSm90Parameters& p) {
    return p.stage.mixing.before / kStrip;
  }
  /// Number of strips that any row before row tile `end` uses.
  static MHLA_HOST_DEVICE constexpr std::int32_t strips(const MixingSm90Parameters& p,
                                                        std::int32_t end) {
    const MixingItems& items = p.items;
    const std::int32_t needed = strips_before(p) + (end < items.row_tiles ? end : items.row_tiles);
    return p.stage.earlier && needed < items.strips ? needed : items.strips;
  }
  /// Number of strips that a row tile uses; 0 for an absent tile.
  static MHLA_HOST_DEVICE constexpr std::int32_t tile_strips(const MixingSm90Parameters& p,
                                                             std::int32_t row_tile) {
    return row_tile < p.items.row_tiles ? strips(p, row_tile + 1) : 0;
  }
  /// Number of strips of m that stay in shared memory.
  static MHLA_HOST_DEVICE constexpr std::int32_t kept_strips(const MixingSm90Parameters& p) {
    return p.items.stays ? strips(p, p.items.row_tiles) : 0;
  }

  /// Share of thread block `block` of `blocks`.
  static MHLA_HOST_DEVICE constexpr MixingShare share(const MixingSm90Parameters& p,
                                                      std::int32_t block, std::int32_t blocks) {
    return {slots(p.items, kept_strips(p)), block, blocks};
  }

  /// Calls visit(item) for the items of a thread block, in steps of the grid. Items go downward by
  /// pair, columns, rows. Every second step reverses the order of thread blocks and of warpgroups.
  /// This balances items with many earlier b.
  template <class Visit>
  static MHLA_DEVICE void for_items(const MixingSm90Parameters& p, const MixingShare& share,
                                    const Visit& visit) {
    const MixingItems& items = p.items;
    std::uint32_t turn = 0;
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; first < items.count; first += share.step, turn ^= 1) {
      const std::int32_t offset = turn == 0 ? share.first : share.step - 1 - share.first;
      if (first + offset >= items.count) continue;
      const std::int32_t upward = items.count - 1 - first - offset;
      const std::int32_t at = items.rows.quotient(upward);
      visit(item(p, at, upward - at * items.rows.value(), turn));
    }
  }

  /// Returns unit `index` of a warpgroup.
  static MHLA_HOST_DEVICE constexpr MixingUnit unit(const MixingSm90Parameters& p,
                                                    const MixingItem& item, std::uint32_t group,
                                                    std::uint32_t index) {
    const MixingItems& items = p.items;
    const std::uint32_t number = (group ^ item.turn) + kWarpgroups * index;
    const std::uint32_t item_tile = number & ((1u << items.tiles_log2) - 1);
    const std::int32_t row = item.row_tile + static_cast<std::int32_t>(item_tile);
    const std::uint32_t panel = (number >> items.tiles_log2) * kPanels;
    const std::int32_t diagonal = p.stage.earlier ? strips_before(p) + row : item.strips;
    const std::int32_t whole = diagonal < item.strips ? diagonal : item.strips;
    return {row, item_tile, panel, row < items.row_tiles ? whole : 0};
  }

 private:
  /// The item of columns `at` (counted through all pairs) and group `group` of rows.
  static MHLA_HOST_DEVICE constexpr MixingItem item(const MixingSm90Parameters& p, std::int32_t at,
                                                    std::int32_t group, std::uint32_t turn) {
    const std::int32_t log2 = p.items.tiles_log2;
    return {at * panels(p.items), group << log2, strips(p, (group + 1) << log2), turn};
  }
};

}  // namespace mhla::cuda
