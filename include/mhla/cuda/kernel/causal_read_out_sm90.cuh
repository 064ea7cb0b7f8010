#pragma once

/// \file
/// Outputs of every query from earlier blocks and from the tokens of its own up to itself, with the
/// copy engine and wgmma:
///
///     o_t = factor(den_t) (phi(q_t)^T S~_i + sum_{j <= t} m_ii (phi(q_t) . phi(k_j)) v_j)
///     den_t = phi(q_t) . z~_i + sum_{j <= t} m_ii phi(q_t) . phi(k_j)                    kKeySum
///
/// t and j in block i, a run of tokens. All go in tiles of 64 tokens, of blocks the last one first.
/// A thread behind the warpgroups loads, into three rings: tiles of K and V; tiles of Q; S~_i and
/// z~_i. D / 64 warpgroups have E / warpgroups columns of O each, so that all work on a tile of
/// queries too, but each computes P. They map K where it lies, for wgmma reads it there, when the
/// first queries of a block come to it:
///
///     P = T(phi(Q) phi(K tile)^T)    [64, 64], K tiles from the own one down, by every warpgroup;
///     O += P V                       of half P has m_ii already (kernel/own_block.cuh)
///     O = m_ii O + phi(Q) S~_i       and den; nothing is added for i = 0
///     norm and gate of O             where wanted (tile/output_norm.cuh)
///
/// K and V of the next block come where a tile was that earlier queries have no use for.
///
///     (D, E)        threads      per multiprocessor    tiles of a block, pairs    sums of a thread
///     (64, 64)      128 + 32     2 thread blocks       4, 4                       32 + 32
///     (128, 128)    256 + 128    1                     4, 3                       32 + 32
///     (128, 256)    256 + 128    1                     2, 1                       64 + 32
///
/// K and V of other blocks are never read, V of later tokens never multiplied but by a zero that
/// replaces what came of K, and not even that where it is not finite.
///
/// Shared memory: the rings, as many slots as fit; 2048 bytes a warp from which the copy engine
/// takes its rows of O; 16 bytes of barriers a slot; 512 bytes of squares.
/// Device memory: Q, K, V, S~, z~ and the gate once, O once; mixtures stay in the second cache
/// longest. Source: arXiv:2601.07832, section 4.2.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm90_config.cuh"
#include "mhla/cuda/kernel/mixture_slot.cuh"
#include "mhla/cuda/kernel/own_block.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/output_norm.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P>
struct CausalReadOutSm90 {
  using Params = CausalReadOutSm90Parameters;
  using Config = CausalReadOutSm90Config<D, E, P>;
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = Config::kBlocksPerMultiprocessor;
  static constexpr int kRegisters = 168;

  /// Fills all but the maps, which are of `boxes`. Whether the kernel can do it: otherwise blocks
  /// are too large, no runs of tokens, or strides none of the copy engine's.
  static constexpr bool prepare(const CausalReadOutParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, Params& p, TensorBox (&boxes)[11]) {
    return Config::prepare(stage, pairs, multiprocessors, p, boxes);
  }

  static constexpr unsigned grid(const Params& p, int) {
    return persistent_grid<Config>(p.pairs * p.stage.blocks.blocks(), p.multiprocessors);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const Rings rings = rings_of(p);
    run_persistent<Config>(
        [&](std::uint32_t thread) {
          if (thread != Config::kProducer) return;
          Mixture::prefetch_maps(p.maps, 6, p.stage.normalization.denominator);
          ptx::prefetch_tensormap(p.maps[9]);
        },
        [&] { load(p, rings); }, [&](std::uint32_t thread) { read(p, rings, thread); },
        rings.mixtures, rings.queries, rings.key_values);
  }

 private:
  static constexpr int kTiles = Config::kColumns / 8;
  using Mixture = typename Config::Mixture;
  using Tile = OwnBlockTile<T, D, Config::kColumns>;

  struct Rings {
    Ring mixtures;
    Ring queries;
    Ring key_values;
  };

  /// What a warp of a warpgroup works on.
  struct WorkTile {
    std::uint32_t warp;  // of the block
    std::uint32_t lane;
    int column;    // the warpgroup's first
    bool mixed;    // there are earlier blocks
    float weight;  // m_ii, if P is without
    Item item;
  };

  static MHLA_DEVICE std::int32_t tiles(const Params& p) {
    return (p.stage.blocks.slots() + 63) / 64;
  }
  static MHLA_DEVICE std::int32_t tile_rows(const Params& p, std::int32_t tile) {
    const std::int32_t left = p.stage.blocks.slots() - 64 * tile;
    return left < 64 ? left : 64;
  }

  static MHLA_DEVICE Rings rings_of(const Params& p) {
    const typename Config::Slots slots = Config::slots(tiles(p));
    const auto mixtures = static_cast<std::uint32_t>(slots.mixtures);
    const auto key_values = static_cast<std::uint32_t>(slots.key_values);
    const std::uint32_t begin = ptx::shared_begin();
    const std::uint32_t queries = begin + mixtures * Mixture::kBytes;
    const std::uint32_t barriers = Config::barriers(begin);
    return {{begin, Mixture::kBytes, barriers, mixtures},
            {queries, Config::kQueryBytes, barriers + 2 * Ring::kBarrierBytes, Config::kQueries},
            {queries + Config::kQueries * Config::kQueryBytes, Config::kKeyValueBytes,
             barriers + (2 + Config::kQueries) * Ring::kBarrierBytes, key_values}};
  }

  /// In the order in which slots become free: the last tile of K and V of a block takes the place
  /// of the first one of a block before.
  static MHLA_DEVICE void load(const Params& p, const Rings& rings) {
    const bool key_sum = p.stage.normalization.denominator == Denominator::kKeySum;
    const std::uint64_t once = ptx::createpolicy_evict_first();
    RingCursor mixture, query, key_value;
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      const std::int32_t last = tiles(p) - 1;
      MHLA_CUDA_LOOP
      for (std::int32_t tile = last; tile >= 0; --tile) {
        if (tile == 0) load_queries(p, rings.queries, query, item, last, once);
        load_keys_and_values(p, rings.key_values, key_value, item, tile, once);
      }
      if (p.stage.mixing.own(item.block) > 0) {
        rings.mixtures.producer_acquire(mixture, Mixture::loaded_bytes(key_sum));
        Mixture{rings.mixtures.slot(mixture)}.load(p.maps + 6, item.pair, item.block, key_sum,
                                                   rings.mixtures.full(mixture));
        mixture = mixture.after(1, rings.mixtures.count);
      }
      MHLA_CUDA_LOOP
      for (std::int32_t tile = last - 1; tile >= 0; --tile) {
        load_queries(p, rings.queries, query, item, tile, once);
      }
    });
  }

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
    const std::uint32_t keys = ring.slot(at), values = keys + D / 64 * Tile::kPanelBytes;
    load_panels<D>(p, 2, p.k_boxes, item, tile, keys, ring.full(at), policy);
    load_panels<E>(p, 4, p.v_boxes, item, tile, values, ring.full(at), policy);
    at = at.after(1, ring.count);
  }

  /// Starts to load kWidth columns of a tile, by map `map` or, of the last tile, the one behind.
  template <int kWidth>
  static MHLA_DEVICE void load_panels(const Params& p, int map, const TokenBoxes& boxes,
                                      const Item& item, std::int32_t tile, std::uint32_t to,
                                      std::uint32_t barrier, std::uint64_t policy) {
    BlockOrigin origin = item.origin;
    origin.column += 64 * tile;
    MHLA_CUDA_UNROLL
    for (int panel = 0; panel < kWidth / 64; ++panel) {
      ptx::cp_async_bulk_tensor(to + panel * Tile::kPanelBytes,
                                p.maps[map + (tile == tiles(p) - 1 ? 1 : 0)],
                                boxes.origin(origin, item.head, 0, 64 * panel), barrier, policy);
    }
  }

  static MHLA_DEVICE void read(const Params& p, const Rings& rings, std::uint32_t thread) {
    const int column = static_cast<int>(thread / 128) * Config::kColumns;
    RingCursor mixture, query, key_value;
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      const std::int32_t own = p.stage.mixing.own(item.block), last = tiles(p) - 1;
      const float weight = ptx::ld_global_nc_f32(p.stage.mixing.row(item.block) + own);
      const float left = Tile::kWeighs ? 1 : weight;
      const WorkTile work{thread / 32, thread % 32, column, own > 0, left, item};
      MHLA_CUDA_LOOP
      for (std::int32_t tile = last; tile >= 0; --tile) {
        rings.queries.consumer_wait(query);
        const std::int32_t row = 16 * static_cast<std::int32_t>(work.warp % 4);
        Fragment<D> features = load_box_rows<D>(rings.queries.slot(query), Tile::kPanelBytes, row,
                                                tile_rows(p, tile), work.lane);
        rings.queries.consumer_release(query, work.lane);
        query = query.after(1, rings.queries.count);
        apply<T>(p.stage.query_map, features);
        ptx::fence_registers(features.x);
        float sums[kTiles][4] = {};
        float totals[4] = {};
        RingCursor at = key_value;  // of the tile's own keys
        MHLA_CUDA_LOOP
        for (std::int32_t other = tile; other >= 0; --other) {
          const std::uint32_t keys = rings.key_values.slot(at);
          if (tile == last) {
            rings.key_values.consumer_wait(at);
            Tile::template map<E, 32 * Config::kConsumers>(p.stage.key_map, keys,
                                                           tile_rows(p, other), thread);
          }
          const auto panels = static_cast<std::uint32_t>(D + work.column) / 64;
          Tile{keys, keys + panels * Tile::kPanelBytes, weight, work.warp % 4, work.lane}.add(
              totals, sums, features, other == tile);
          at = at.after(1, rings.key_values.count);
        }
        RowPair den{totals[0] * work.weight, totals[2] * work.weight};
        if (work.mixed) {
          if (tile == last) rings.mixtures.consumer_wait(mixture);
          add_mixture(p, work, features, Mixture{rings.mixtures.slot(mixture)}, den, sums);
        }
        write(p, work, tile, den, sums);
        rings.key_values.consumer_release(key_value, work.lane);
        key_value = key_value.after(1, rings.key_values.count);
      }
      if (work.mixed) {
        rings.mixtures.consumer_release(mixture, work.lane);
        mixture = mixture.after(1, rings.mixtures.count);
      }
    });
    if (thread % 32 == 0) ptx::cp_async_bulk_wait_group_read<0>();
  }

  /// Adds the part of earlier blocks to the sums, scaled as that is, and to the sums of weights.
  static MHLA_DEVICE void add_mixture(const Params& p, const WorkTile& work,
                                      const Fragment<D>& features, const Mixture& mixture,
                                      RowPair& own, float (&sums)[kTiles][4]) {
    if (p.stage.normalization.denominator == Denominator::kKeySum) {
      const RowPair earlier = row_products<T>(features, mixture.key_sum(), work.lane);
      own.x += earlier.x;
      own.x_8 += earlier.x_8;
    }
    scale_sums(sums, p.stage.mixtures.scale * work.weight);
    ptx::fence_registers(sums);
    ptx::wgmma_fence();
    mixture.template multiply<T>(sums, features, work.column);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::fence_registers(sums);
  }

  /// The outputs of the warp's rows of a tile, those that the block has.
  static MHLA_DEVICE void write(const Params& p, const WorkTile& work, std::int32_t tile,
                                RowPair den, float (&sums)[kTiles][4]) {
    const Normalization& by = p.stage.normalization;
    const float unit = work.mixed ? inverse_power(p.stage.mixtures.scale) : work.weight;
    RowPair factors{by.factor(den.x) * unit, by.factor(den.x_8) * unit};
    const std::int32_t row = 64 * tile + 16 * static_cast<std::int32_t>(work.warp % 4);
    if (p.stage.norm.normed) {
      apply_norm(p, work, row, factors, sums);
      factors = {1, 1};
    }
    const std::int32_t left = p.stage.blocks.slots() - row;
    if (left <= 0) return;
    BlockOrigin origin = work.item.origin;
    origin.column += row;
    store_tiles<T>(sums, factors, Config::tile(work.warp), work.lane, [&](int column) {
      ptx::cp_async_bulk_tensor_store(
          p.maps[left < 16 ? 10 : 9],
          p.o_boxes.origin(origin, work.item.head, 0, work.column + column),
          Config::tile(work.warp).begin, ptx::createpolicy_evict_first());
    });
  }

  /// Makes outputs of the sums of rows row.. of a block.
  static MHLA_DEVICE void apply_norm(const Params& p, const WorkTile& work, std::int32_t row,
                                     RowPair factors, float (&sums)[kTiles][4]) {
    RowPair squares{0, 0};
    add_squares(squares, sums, factors);
    squares = over_row(squares);
    if constexpr (Config::kWarpgroups == 2) {
      const std::uint32_t shared = Config::barriers(ptx::shared_begin()) + Config::kSquares;
      squares = over_warpgroups(squares, shared, work.warp, work.lane);
    }
    const std::int32_t slot = row + static_cast<std::int32_t>(work.lane / 4);
    const auto token = [&](std::int32_t i) { return p.stage.blocks.token(work.item.origin, i); };
    p.stage.norm.template apply<T>(sums, p.stage.norm.template scaled<E>(factors, squares),
                                   work.column, work.item.head, {token(slot), token(slot + 8)},
                                   work.lane);
  }
};

}  // namespace mhla::cuda
