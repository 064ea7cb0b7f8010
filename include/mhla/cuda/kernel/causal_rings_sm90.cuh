#pragma once

/// \file
/// The three rings of causal_read_out_sm90.cuh in shared memory, and their producer: mixtures,
/// tiles of Q, and tiles of K and V.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm90_config.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"

namespace mhla::cuda {

template <int D, int E, Precision P>
struct CausalRings {
  using Params = CausalReadOutSm90Parameters;
  using Config = CausalReadOutSm90Config<D, E, P>;
  using Mixture = typename Config::Mixture;
  static constexpr std::uint32_t kPanelBytes = 64 * 128;  ///< bytes of 64 columns of a tile

  Ring mixtures;
  Ring queries;
  Ring key_values;

  explicit MHLA_DEVICE CausalRings(const Params& p) {
    const typename Config::Slots slots = Config::slots(tiles(p));
    const auto mixture_slots = static_cast<std::uint32_t>(slots.mixtures);
    const auto key_value_slots = static_cast<std::uint32_t>(slots.key_values);
    const std::uint32_t begin = ptx::shared_begin(), barriers = Config::barriers(begin);
    const std::uint32_t query_tiles = begin + mixture_slots * Mixture::kBytes;
    mixtures = {begin, Mixture::kBytes, barriers, mixture_slots};
    queries = {query_tiles, Config::kQueryBytes, barriers + 2 * Ring::kBarrierBytes,
               Config::kQueries};
    key_values = {query_tiles + Config::kQueries * Config::kQueryBytes, Config::kKeyValueBytes,
                  barriers + (2 + Config::kQueries) * Ring::kBarrierBytes, key_value_slots};
  }

  /// Number of tiles per block.
  static MHLA_DEVICE std::int32_t tiles(const Params& p) {
    return (p.stage.blocks.slots() + 63) / 64;
  }
  static MHLA_DEVICE std::int32_t tile_rows(const Params& p, std::int32_t tile) {
    const std::int32_t left = p.stage.blocks.slots() - 64 * tile;
    return left < 64 ? left : 64;
  }

  /// Loads in the order in which slots become free: the last tile of K and V of a block replaces
  /// the first one of an earlier block. Since a mixture may wait for the end of an earlier block,
  /// the first queries of the block are loaded before it.
  MHLA_DEVICE void load(const Params& p) const {
    const bool key_sum = p.stage.normalization.denominator == Denominator::kKeySum;
    const std::uint64_t once = ptx::createpolicy_evict_first();
    RingCursor mixture, query, key_value;
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      const std::int32_t last = tiles(p) - 1, rest = last - (Config::by_turns(last + 1) ? 2 : 1);
      MHLA_CUDA_LOOP
      for (std::int32_t tile = last; tile >= 0; --tile) {
        if (tile == 0) {
          MHLA_CUDA_LOOP
          for (std::int32_t i = last; i > rest; --i) load_queries(p, queries, query, item, i, once);
        }
        load_keys_and_values(p, key_values, key_value, item, tile, once);
      }
      if (p.stage.mixing.diagonal(item.block) > 0) {
        mixtures.producer_acquire(mixture, Mixture::loaded_bytes(key_sum));
        Mixture{mixtures.slot(mixture)}.load(p.maps + 6, item.pair, item.block, key_sum,
                                             mixtures.full(mixture));
        mixture = mixture.after(1, mixtures.count);
      }
      MHLA_CUDA_LOOP
      for (std::int32_t tile = rest; tile >= 0; --tile) {
        load_queries(p, queries, query, item, tile, once);
      }
    });
  }

 private:
  static MHLA_DEVICE void load_queries(const Params& p, const Ring& ring, RingCursor& at,
                                       const Item& item, std::int32_t tile, std::uint64_t policy) {
    ring.producer_acquire(at, static_cast<std::uint32_t>(tile_rows(p, tile)) * 2 * D);
    load_panels<D>(p, 0, p.q_boxes, item, tile, ring.slot(at), ring.full(at), policy);
    at = at.after(1, ring.count);
  }

  static MHLA_DEVICE void load_keys_and_values(const Params& p, const Ring& ring, RingCursor& at,
                                               const Item& item, std::int32_t tile,
                                               std::uint64_t policy) {
    ring.producer_acquire(at, static_cast<std::uint32_t>(tile_rows(p, tile)) * 2 * (D + E));
    const std::uint32_t keys = ring.slot(at), values = keys + D / 64 * kPanelBytes;
    load_panels<D>(p, 2, p.k_boxes, item, tile, keys, ring.full(at), policy);
    load_panels<E>(p, 4, p.v_boxes, item, tile, values, ring.full(at), policy);
    at = at.after(1, ring.count);
  }

  /// Starts to load kWidth columns of a tile by map `map`, or, for the last tile, by the next map.
  template <int kWidth>
  static MHLA_DEVICE void load_panels(const Params& p, int map, const TokenBoxes& boxes,
                                      const Item& item, std::int32_t tile, std::uint32_t to,
                                      std::uint32_t barrier, std::uint64_t policy) {
    BlockOrigin origin = item.origin;
    origin.column += 64 * tile;
    MHLA_CUDA_UNROLL
    for (int panel = 0; panel < kWidth / 64; ++panel) {
      ptx::cp_async_bulk_tensor(to + panel * kPanelBytes,
                                p.maps[map + (tile == tiles(p) - 1 ? 1 : 0)],
                                boxes.origin(origin, item.head, 0, 64 * panel), barrier, policy);
    }
  }
};

}  // namespace mhla::cuda
