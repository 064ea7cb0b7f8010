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

/// 64 row_tiles mixtures, of as many columns as make four units.
struct MixingItem {
  std::int32_t panel;     ///< the first, of 64 columns, counted through all pairs
  std::int32_t row_tile;  ///< the first, of 64 rows
  std::int32_t own_log2;  ///< 2^this row tiles: 1, 2 or 4
  std::int32_t strips;    ///< of 64 b, all that count for one of the rows of the cluster's items
  std::int32_t own;       ///< strips of m: those that count for its own rows
};

/// 64 rows and 64 or 128 columns of an item.
struct MixingUnit {
  std::int32_t row_tile;  ///< of the matrix
  std::uint32_t own_row;  ///< counted from the item's first
  std::uint32_t panel;    ///< likewise
  std::int32_t whole;     ///< strips that count for all its rows: the first ones
};

/// How many there are, and how large they are.
struct MixingItems {
  std::int32_t count;         ///< or of clusters, which have one in each thread block
  std::int32_t row_tiles;     ///< of 64 rows, of the matrix
  std::int32_t strips;        ///< of 64 b
  std::int32_t own_log2;      ///< 2^this row tiles are in an item: 1, 2 or 4
  bool tall;                  ///< but the first 4, which together count few b, are in one
  Divisor rows;               ///< items, or clusters of them, that have all rows of their columns
  bool stays;                 ///< a thread block has the same rows in all items, m in shared memory
  std::int32_t cluster_log2;  ///< 2^this thread blocks, one below another, load S together
};

/// What a thread block does.
struct MixingShare {
  std::int32_t row_tile;  ///< the first of its items where m stays, else of the cluster's
  std::int32_t own_log2;  ///< of its items
  std::int32_t strips;    ///< of m, where it stays
  std::int32_t slots;     ///< of strips of S, in shared memory
  std::int32_t first;     ///< item; of those of the rows, where they are the same
  std::int32_t step;
  std::int32_t rank;  ///< of the thread block in its cluster
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
  static constexpr int kConsumerRegisters = 200;
  static constexpr int kProducerRegisters = 104;
  static constexpr int kWriters = 3;  // warps behind the producer's, for key sums

  static constexpr int kParts = P == Precision::kPair ? 2 : 1;
  static constexpr int kStrip = 64;  // b
  static constexpr int kUnits = 2;   // of a warpgroup
  static constexpr int kItemUnits = kUnits * kWarpgroups;
  static constexpr int kPanels = 2 / kParts;  // of a unit
  static constexpr int kPairPanels = D * E / 64;
  static constexpr int kPanelBytes = kStrip * 128;  // 64 columns of a strip of S
  static constexpr int kUnitBytes = kParts * kPanels * kPanelBytes;
  static constexpr int kTileBytes = kParts * 64 * 128;  // 64 rows of a strip of m
  static constexpr int kColumnItems = D * E / (64 * kPanels * kItemUnits);  // of 64 rows
  static_assert(kColumnItems * 64 * kPanels * kItemUnits == D * E, "no item is ragged");

  using KeySums = KeySumTeam<D, kWriters>;

  // The rings, and what mixtures of key sums pass through.
  static constexpr int kSums = MixingSm90Config::kRingBytes - KeySums::kBytes;
  static constexpr int kMostSlots = 32;
  static_assert(kMostSlots * Ring::kBarrierBytes <= MixingSm90Config::kBarrierBytes);

  /// Panels of a strip of S, its bytes, and those of a strip of m, for items of 2^own_log2 row
  /// tiles.
  static MHLA_HOST_DEVICE constexpr std::int32_t panels(std::int32_t own_log2) {
    return kPanels * kItemUnits >> own_log2;
  }
  static MHLA_HOST_DEVICE constexpr std::int32_t slot_bytes(std::int32_t own_log2) {
    return kUnitBytes * kItemUnits >> own_log2;
  }
  static MHLA_HOST_DEVICE constexpr std::int32_t factor_bytes(const MixingItems& items,
                                                              std::int32_t own_log2) {
    const std::int32_t own = 1 << own_log2;
    return (items.row_tiles < own ? items.row_tiles : own) * kTileBytes;
  }
  /// Panels of a box of S: so few that each thread block of a cluster loads as many.
  static MHLA_HOST_DEVICE constexpr std::int32_t box_panels(const MixingItems& items) {
    const std::int32_t most = panels(items.tall ? 2 : items.own_log2) >> items.cluster_log2;
    return most > 0 ? most : 1;
  }
  /// Bytes of a slot of the ring: a strip of S, and one of m behind it where that does not stay.
  static MHLA_HOST_DEVICE constexpr std::int32_t ring_bytes(const MixingItems& items,
                                                            std::int32_t own_log2) {
    return slot_bytes(own_log2) + (items.stays ? 0 : factor_bytes(items, own_log2));
  }
  /// Slots beside so many strips of m that stay.
  static MHLA_HOST_DEVICE constexpr std::int32_t slots(const MixingItems& items,
                                                       std::int32_t own_log2, std::int32_t strips) {
    const std::int32_t count =
        (kSums - strips * factor_bytes(items, own_log2)) / ring_bytes(items, own_log2);
    return count < kMostSlots ? count : kMostSlots;
  }

  /// All rows in one item if m and two strips of S fit; otherwise 128, and m of these stays if it
  /// fits, as long as each 128 rows get some thread blocks, and the first 256 are in one item if
  /// what they count of m fits. Few rows have many columns, unless multiprocessors would be idle
  /// then.
  static constexpr MixingItems choose(const MixingParameters& p, std::int32_t pairs,
                                      std::int32_t multiprocessors) {
    MixingItems items{
        0, (p.rows + 63) / 64, (p.columns + kStrip - 1) / kStrip, 0, false, Divisor(1), true, 0};
    const auto fits = [&] {
      return items.strips <= kMostSlots && slots(items, items.own_log2, items.strips) >= 2;
    };
    while ((1 << items.own_log2) < items.row_tiles && items.own_log2 < 2) ++items.own_log2;
    if (items.row_tiles <= kItemUnits && fits()) {
      const std::int32_t widest = pairs * kColumnItems;
      while (items.own_log2 < 2 && widest << items.own_log2 < multiprocessors) ++items.own_log2;
    } else {
      items.own_log2 = 1;
      items.stays = fits() && 4 * groups(items.row_tiles, 0) <= multiprocessors;
      if (!items.stays) items.cluster_log2 = best_cluster(items.row_tiles, multiprocessors);
      items.rows = Divisor(groups(items.row_tiles, items.cluster_log2));
      items.tall = items.stays && p.earlier && items.row_tiles > 4 &&
                   columns(1, pairs) * items.rows.value() > multiprocessors &&
                   slots(items, 2, p.mixing.before / kStrip + 4) >= 2;
    }
    items.count = columns(items.own_log2, pairs) * items.rows.value();
    if (items.tall) items.rows = Divisor(items.rows.value() - 1);
    return items;
  }

  /// Clusters of so many items of 128 rows that have all row tiles.
  static MHLA_HOST_DEVICE constexpr std::int32_t groups(std::int32_t row_tiles,
                                                        std::int32_t cluster_log2) {
    return ((row_tiles - 1) >> (1 + cluster_log2)) + 1;
  }
  /// 2^this thread blocks are a cluster where m does not stay. For an item they read 2 parts of S,
  /// by turns, and 1 of m each; where rows are no multiple of the cluster's some are idle.
  static constexpr std::int32_t best_cluster(std::int32_t row_tiles, std::int32_t multiprocessors) {
    const auto cost = [&](std::int32_t log2) {
      return groups(row_tiles, log2) * ((1 << log2) + 2);
    };
    std::int32_t best = 0;
    for (std::int32_t log2 = 1; log2 <= 2 && 1 << log2 <= multiprocessors; ++log2) {
      if (cost(log2) < cost(best)) best = log2;
    }
    return best;
  }

  /// Items that have the same 2^own_log2 row tiles.
  static MHLA_HOST_DEVICE constexpr std::int32_t columns(std::int32_t own_log2,
                                                         std::int32_t pairs) {
    return pairs * (kColumnItems << own_log2);
  }
  /// Strips before that of row 0's own block.
  static MHLA_HOST_DEVICE constexpr std::int32_t strips_before(const MixingSm90Parameters& p) {
    return p.stage.mixing.before / kStrip;
  }
  /// Strips that count for one of the rows of an item.
  static MHLA_HOST_DEVICE constexpr std::int32_t strips(const MixingSm90Parameters& p,
                                                        std::int32_t row_tile,
                                                        std::int32_t own_log2) {
    const MixingItems& items = p.items;
    const std::int32_t end = row_tile + (1 << own_log2);
    const std::int32_t needed = strips_before(p) + (end < items.row_tiles ? end : items.row_tiles);
    return p.stage.earlier && needed < items.strips ? needed : items.strips;
  }

  /// That of thread block `block` of so many. Where m stays, rows get thread blocks in proportion
  /// to what their items read and write, so that all come to the same columns at about the same
  /// time, and find S in the second cache.
  static MHLA_HOST_DEVICE constexpr MixingShare share(const MixingSm90Parameters& p,
                                                      std::int32_t block, std::int32_t blocks) {
    const MixingItems& items = p.items;
    if (!items.stays) {
      const std::int32_t rank = block & ((1 << items.cluster_log2) - 1);
      return {rank << items.own_log2,
              items.own_log2,
              0,
              slots(items, items.own_log2, 0),
              block >> items.cluster_log2,
              blocks >> items.cluster_log2,
              rank};
    }
    const std::int32_t groups = items.rows.value();
    const bool one_each = items.count <= blocks;
    const auto of_group = [&](std::int32_t group) {
      const std::int32_t own_log2 = items.tall && group == 0 ? 2 : items.own_log2;
      const std::int32_t row_tile = (items.tall && group > 0 ? group + 1 : group) << items.own_log2;
      return MixingShare{row_tile, own_log2, strips(p, row_tile, own_log2), 0, 0, 0, 0};
    };
    const auto weight = [&](std::int32_t group) {
      const MixingShare own = of_group(group);
      return one_each ? 1 : own.strips + (1 << own.own_log2);
    };
    std::int32_t all = 0;
    for (std::int32_t group = 0; group < groups; ++group) all += weight(group);
    std::int32_t group = 0, before = 0, begin = 0, end = 0;
    for (; group < groups; ++group) {
      before += weight(group);
      end = group + 1 + before * (blocks - groups) / all;  // at least one each
      if (block < end) break;
      begin = end;
    }
    MixingShare share = of_group(group);
    share.slots = slots(items, share.own_log2, share.strips);
    share.first = block - begin;
    share.step = end - begin;
    return share;
  }

  /// Calls visit(item) for the items of a thread block: by pair, columns, rows, all three downward.
  /// Where rows differ, in steps of the grid, every other step in the opposite order of thread
  /// blocks, so that those with many earlier b meet all in turn.
  template <class Visit>
  static MHLA_DEVICE void for_items(const MixingSm90Parameters& p, const MixingShare& share,
                                    const Visit& visit) {
    const MixingItems& items = p.items;
    const std::int32_t count = items.stays ? columns(share.own_log2, p.pairs) : items.count;
    std::int32_t own = share.first;
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; first < count; first += share.step) {
      if (first + own < count) {
        const std::int32_t upward = count - 1 - first - own;
        const std::int32_t at = items.stays ? upward : items.rows.quotient(upward);
        const std::int32_t group = items.stays ? 0 : upward - at * items.rows.value();
        visit(item(p, share, at, group << (items.own_log2 + items.cluster_log2)));
      }
      if (!items.stays) own = share.step - 1 - own;
    }
  }

  /// Unit `index` of a warpgroup.
  static MHLA_HOST_DEVICE constexpr MixingUnit unit(const MixingSm90Parameters& p,
                                                    const MixingItem& item, std::uint32_t group,
                                                    std::uint32_t index) {
    const MixingItems& items = p.items;
    const std::uint32_t number = group + kWarpgroups * index;
    const std::uint32_t own = number & ((1u << item.own_log2) - 1);
    const std::int32_t row = item.row_tile + static_cast<std::int32_t>(own);
    const std::uint32_t panel = (number >> item.own_log2) * kPanels;
    const std::int32_t diagonal = p.stage.earlier ? strips_before(p) + row : item.strips;
    const std::int32_t whole = diagonal < item.strips ? diagonal : item.strips;
    return {row, own, panel, row < items.row_tiles ? whole : 0};
  }

 private:
  /// Columns `at` of all pairs, and the rows that a thread block has of those from row tile `first`
  /// on.
  static MHLA_HOST_DEVICE constexpr MixingItem item(const MixingSm90Parameters& p,
                                                    const MixingShare& share, std::int32_t at,
                                                    std::int32_t first) {
    const std::int32_t own_log2 = share.own_log2, row_tile = first + share.row_tile;
    const std::int32_t own_strips =
        row_tile < p.items.row_tiles ? strips(p, row_tile, own_log2) : 0;
    return {at * panels(own_log2), row_tile, own_log2,
            p.items.stays ? own_strips : strips(p, first, own_log2 + p.items.cluster_log2),
            own_strips};
  }
};

}  // namespace mhla::cuda
