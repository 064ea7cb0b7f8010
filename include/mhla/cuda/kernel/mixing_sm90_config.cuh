#pragma once

/// \file
/// Sizes, shared memory and items of mixing_sm90.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/key_sum_mixing.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"

namespace mhla::cuda {

/// 64 row_tiles mixtures, of as many columns as make four units.
struct MixingItem {
  std::int32_t pair;
  std::int32_t panel;     ///< the first, of 64 columns
  std::int32_t row_tile;  ///< the first, of 64 rows
  std::int32_t strips;    ///< of 64 b, all that count for one of the rows
};

/// 64 rows and 64 or 128 columns of an item.
struct MixingUnit {
  std::int32_t row_tile;  ///< of the matrix
  std::uint32_t own_row;  ///< counted from the item's first
  std::uint32_t panel;    ///< likewise
  bool exists;
};

/// How many there are, and how large they are.
struct MixingItems {
  std::int32_t count;
  std::int32_t row_tiles;  ///< of 64 rows, of the matrix
  std::int32_t strips;     ///< of 64 b
  std::int32_t own_log2;   ///< 2^this row tiles are in an item: 1, 2 or 4
  Divisor rows;            ///< items that have all rows of their columns
  std::int32_t slots;      ///< of strips of S, in shared memory
  bool stays;              ///< items have all rows, and m stays in shared memory
};

struct MixingSm90Parameters {
  TensorMap maps[4];  ///< of strips of S and of its low part, of 16 rows of S~ and its low part
  MixingParameters stage;
  MixingItems items;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< of the device
};

/// Two warpgroups and a multiprocessor to itself, whatever the widths.
template <int D, int E, Precision P>
struct MixingSm90Config : PersistentConfig<128, 128, true> {
  static constexpr int kConsumerRegisters = 208;
  static constexpr int kProducerRegisters = 88;
  static constexpr int kWriters = 3;  // warps behind the producer's

  static constexpr int kParts = P == Precision::kPair ? 2 : 1;
  static constexpr int kStrip = 64;  // b
  static constexpr int kUnits = 2;   // of a warpgroup
  static constexpr int kItemUnits = kUnits * kWarpgroups;
  static constexpr int kPanels = 2 / kParts;        // of a unit
  static constexpr int kPanelBytes = kStrip * 128;  // 64 columns of a strip of S
  static constexpr int kUnitBytes = kParts * kPanels * kPanelBytes;
  static constexpr int kTileBytes = kParts * 64 * 128;  // 64 rows of a strip of m
  static constexpr int kColumnItems = D * E / (64 * kPanels * kItemUnits);  // of 64 rows
  static_assert(kColumnItems * 64 * kPanels * kItemUnits == D * E, "no item is ragged");

  // The rings, and what mixtures of key sums pass through.
  static constexpr int kSums = MixingSm90Config::kRingBytes - kWriters * KeySumMixing<D>::kBytes;
  static constexpr int kMostSlots = 32;  // of a ring
  static_assert(2 * kMostSlots * Ring::kBarrierBytes <= MixingSm90Config::kBarrierBytes);

  /// Panels of a strip of S, its bytes, and those of a strip of m.
  static MHLA_HOST_DEVICE constexpr std::int32_t panels(const MixingItems& items) {
    return kPanels * kItemUnits >> items.own_log2;
  }
  static MHLA_HOST_DEVICE constexpr std::int32_t slot_bytes(const MixingItems& items) {
    return kUnitBytes * kItemUnits >> items.own_log2;
  }
  static MHLA_HOST_DEVICE constexpr std::int32_t factor_bytes(const MixingItems& items) {
    return (items.stays ? items.row_tiles : 1 << items.own_log2) * kTileBytes;
  }

  /// All rows in one item if m and two strips of S fit; otherwise 128, with m a strip at a time.
  /// Few rows have many columns, unless multiprocessors would be idle then.
  static constexpr MixingItems choose(const MixingParameters& p, std::int32_t pairs,
                                      std::int32_t multiprocessors) {
    MixingItems items{0,   (p.rows + 63) / 64, (p.columns + kStrip - 1) / kStrip, 0, Divisor(1), 0,
                      true};
    while ((1 << items.own_log2) < items.row_tiles && items.own_log2 < 2) ++items.own_log2;
    items.stays = items.row_tiles <= kItemUnits && items.strips <= kMostSlots &&
                  items.strips * factor_bytes(items) + 2 * slot_bytes(items) <= kSums;
    if (items.stays) {
      const std::int32_t widest = pairs * kColumnItems;
      while (items.own_log2 < 2 && widest << items.own_log2 < multiprocessors) ++items.own_log2;
      items.slots = (kSums - items.strips * factor_bytes(items)) / slot_bytes(items);
    } else {
      items.own_log2 = 1;
      items.rows = Divisor((items.row_tiles + 1) / 2);
      items.slots = kSums / (slot_bytes(items) + factor_bytes(items));
    }
    if (items.slots > kMostSlots) items.slots = kMostSlots;
    items.count = pairs * (kColumnItems << items.own_log2) * items.rows.value();
    return items;
  }

  /// Item `index` by pair, columns, rows, all three downward.
  static MHLA_HOST_DEVICE constexpr MixingItem item(const MixingSm90Parameters& p,
                                                    std::int32_t index) {
    const MixingItems& items = p.items;
    const std::int32_t upward = items.count - 1 - index;
    const std::int32_t columns = items.rows.quotient(upward);
    const std::int32_t row = (upward - columns * items.rows.value()) << items.own_log2;
    const std::int32_t end = row + (1 << items.own_log2);
    const std::int32_t needed = end < items.row_tiles ? end : items.row_tiles;
    const bool fewer = p.stage.earlier && needed < items.strips;
    const auto column = static_cast<std::uint32_t>(columns) >> items.own_log2;
    const std::int32_t own = columns - static_cast<std::int32_t>(column / kColumnItems) *
                                           (kColumnItems << items.own_log2);
    return {static_cast<std::int32_t>(column / kColumnItems), own * panels(items), row,
            fewer ? needed : items.strips};
  }

  /// Unit `index` of a warpgroup.
  static MHLA_HOST_DEVICE constexpr MixingUnit unit(const MixingItems& items,
                                                    const MixingItem& item, std::uint32_t group,
                                                    std::uint32_t index) {
    const std::uint32_t number = group + kWarpgroups * index;
    const std::uint32_t own = number & ((1u << items.own_log2) - 1);
    const std::int32_t row = item.row_tile + static_cast<std::int32_t>(own);
    return {row, own, (number >> items.own_log2) * kPanels, row < items.row_tiles};
  }

  /// Calls visit(item) for the items of a thread block: in steps of the grid, every other step in
  /// the opposite order of thread blocks, so that those with many earlier b meet all in turn.
  template <class Visit>
  static MHLA_DEVICE void for_items(const MixingSm90Parameters& p, const Visit& visit) {
    const auto blocks = static_cast<std::int32_t>(ptx::nctaid_x());
    auto own = static_cast<std::int32_t>(ptx::ctaid_x());
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; first < p.items.count; first += blocks) {
      if (first + own < p.items.count) visit(item(p, first + own));
      own = blocks - 1 - own;
    }
  }
};

}  // namespace mhla::cuda
