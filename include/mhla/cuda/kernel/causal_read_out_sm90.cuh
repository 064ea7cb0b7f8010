#pragma once

/// \file
/// Read-out of the causal form by tensor copies and wgmma: outputs of every query from earlier
/// blocks and from tokens of its block up to itself.
///
///     o_t = factor(den_t) (phi(q_t)^T S~_i + sum_{j <= t} m_ii (phi(q_t) . phi(k_j)) v_j)
///     den_t = phi(q_t) . z~_i + sum_{j <= t} m_ii phi(q_t) . phi(k_j)                    kKeySum
///
/// t and j are in block i, a run of tokens. With kRotary, phi(q_t) and phi(k_j) rotate
/// (tile/rotary.cuh), and denominators are not supported, since they would need P of unrotated
/// features.
///
/// Tokens are processed in tiles of 64, the last tile of a block first. One producer thread loads
/// three rings (kernel/causal_rings_sm90.cuh): tiles of K and V; tiles of Q; S~_i and z~_i. D / 64
/// warpgroups have E / warpgroups columns of O each. All of them process the same tile of queries,
/// and each computes P. If two warpgroups have registers for all columns and a block has several
/// tiles, they alternate instead. One takes tiles 0, 3, 4, 7.. from the last one on, the other 1,
/// 2, 5, 6... With the first queries of a block they map K in place, because wgmma reads it from
/// shared memory. With kRotary all warpgroups also map Q in place, and they never alternate, so
/// that angles are read once:
///
///     P = T(phi(Q) phi(K tile)^T)    [64, 64], from the queries' tile down, in every warpgroup;
///     O += P V                       in half, P includes m_ii already (kernel/intra_block.cuh)
///     O = m_ii O + phi(Q) S~_i       and den; nothing is added for i = 0
///     norm and gate of O             if the call wants them (tile/output_norm.cuh)
///
/// K and V of the next block replace tiles that no remaining queries need.
///
///     (D, E)        threads      per multiprocessor    tiles per block, pair      sums of a thread
///     (64, 64)      128 + 32     2 thread blocks       4, 4                       32 + 32
///     (128, 128)    256 + 128    1                     4, 3                       32 or 64 + 32
///     (128, 256)    256 + 128    1                     2, 1                       64 + 32
///
/// K and V of other blocks are never read. Weights of later tokens are zeroed; their values are
/// skipped if not finite.
///
/// Shared memory: the rings, with as many slots as fit, and 16 bytes of barriers per slot. Each
/// warp has 2048 bytes, from which tensor copies store its rows of O. Squares take 512 bytes.
/// Device memory: Q, K, V, S~, z~ and the gate once, O once. Mixtures stay in L2 longest. Angles of
/// Q and of K are read once per head. If both have the same table, the last tile of a block reads
/// them once.
/// Source: arXiv:2601.07832, section 4.2.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm90_config.cuh"
#include "mhla/cuda/kernel/causal_rings_sm90.cuh"
#include "mhla/cuda/kernel/feature_tile.cuh"
#include "mhla/cuda/kernel/intra_block.cuh"
#include "mhla/cuda/kernel/mixture_slot.cuh"
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
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P, bool kRotary = false>
struct CausalReadOutSm90 {
  using Params = CausalReadOutSm90Parameters;
  using Config = CausalReadOutSm90Config<D, E, P>;
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = Config::kBlocksPerMultiprocessor;
  static constexpr int kRegisters = 168;

  /// Fills all parameters but the maps, which describe `boxes`. Returns false if blocks are too
  /// large or no runs of tokens, or tensor copies do not support the strides.
  static constexpr bool prepare(const CausalReadOutParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, Params& p, TensorBox (&boxes)[11]) {
    return Config::prepare(stage, pairs, multiprocessors, p, boxes);
  }

  static constexpr unsigned grid(const Params& p, int) {
    return persistent_grid<Config>(p.pairs * p.stage.blocks.blocks(), p.multiprocessors);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const Rings rings(p);
    run_persistent<Config>(
        [&](std::uint32_t thread) {
          if (thread != Config::kProducer) return;
          Mixture::prefetch_maps(p.maps, 6, p.stage.normalization.denominator);
          ptx::prefetch_tensormap(p.maps[9]);
        },
        [&] { rings.load(p); },
        [&](std::uint32_t thread) {
          if constexpr (Config::by_turns(2) && !kRotary) {
            if (Config::by_turns(Rings::tiles(p))) return read<true>(p, rings, thread);
          }
          read<false>(p, rings, thread);
        },
        rings.mixtures, rings.queries, rings.key_values);
  }

 private:
  using Mixture = typename Config::Mixture;
  using Rings = CausalRings<D, E, P>;
  using Features = FeatureTile<T, D, 32 * Config::kConsumers>;

  /// Work of a warp of a warpgroup.
  struct WorkTile {
    std::uint32_t warp;  // warp of the thread block
    std::uint32_t lane;
    int column;    // first column of the warpgroup
    bool mixed;    // there are earlier blocks
    float weight;  // m_ii, or 1 if P is multiplied by it
    Item item;
  };

  /// \tparam kTurns  Config::by_turns; not with kRotary
  template <bool kTurns>
  static MHLA_DEVICE void read(const Params& p, const Rings& rings, std::uint32_t thread) {
    constexpr int kColumns = kTurns ? E : Config::kColumns;
    using Tile = IntraBlockTile<T, D, kColumns, !kRotary>;
    const std::uint32_t group = ptx::shfl_idx(thread / 128, 0);  // warp-uniform for ptxas
    RingCursor mixture, query, key_value;
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      const std::int32_t diagonal = p.stage.mixing.diagonal(item.block), last = Rings::tiles(p) - 1;
      const float weight =
          ptx::ld_global_nc_f32(p.stage.mixing.of(item.head).row(item.block) + diagonal);
      const float left = Tile::kWeighs ? 1 : weight;
      const int column = kTurns ? 0 : static_cast<int>(group) * kColumns;
      const WorkTile work{thread / 32, thread % 32, column, diagonal > 0, left, item};
      std::int32_t kept = last;  // the tile of keys at key_value
      MHLA_CUDA_LOOP
      for (std::int32_t tile = last; tile >= 0; --tile) {
        const bool first = kept == last;  // the warpgroup's first tile, which maps the keys of all
        if constexpr (kRotary) {
          map_own_tile(p, rings, item, tile, query, first, key_value, thread);
        } else {
          rings.queries.consumer_wait(query);
        }
        const bool taken = !kTurns || Config::takes(group, last - tile);
        Fragment<D> features;
        if (taken) {
          const std::int32_t row = 16 * static_cast<std::int32_t>(work.warp % 4);
          features = load_box_rows<D>(rings.queries.slot(query), Rings::kPanelBytes, row,
                                      Rings::tile_rows(p, tile), work.lane);
        }
        rings.queries.consumer_release(query, work.lane);
        query = query.after(1, rings.queries.count);
        if (!taken) continue;
        if constexpr (!kRotary) apply<T>(p.stage.query_map, features);
        ptx::fence_registers(features.x);
        float sums[kColumns / 8][4] = {};
        float totals[4] = {};
        const std::int32_t begin = first ? last : tile;
        RingCursor at =
            key_value.after(static_cast<std::uint32_t>(kept - begin), rings.key_values.count);
        MHLA_CUDA_LOOP
        for (std::int32_t other = begin; other >= 0; --other) {
          const std::uint32_t keys = rings.key_values.slot(at);
          if (first && !(kRotary && other == tile)) map_keys(p, rings, item, other, at, thread);
          at = at.after(1, rings.key_values.count);
          if (other > tile) continue;
          const auto panels = static_cast<std::uint32_t>(D + work.column) / 64;
          Tile{keys, keys + panels * Rings::kPanelBytes, weight, work.warp % 4, work.lane}.add(
              totals, sums, features, other == tile);
        }
        RowPair den{totals[0] * work.weight, totals[2] * work.weight};
        if (work.mixed) {
          if (first) rings.mixtures.consumer_wait(mixture);
          add_mixture(p, work, features, Mixture{rings.mixtures.slot(mixture)}, den, sums);
        }
        write(p, work, tile, den, sums);
        do {  // releases tiles that no remaining tile of the warpgroup needs
          rings.key_values.consumer_release(key_value, work.lane);
          key_value = key_value.after(1, rings.key_values.count);
          --kept;
        } while (kept >= 0 && (kept >= tile || (kTurns && !Config::takes(group, last - kept))));
      }
      if (work.mixed) {
        rings.mixtures.consumer_release(mixture, work.lane);
        mixture = mixture.after(1, rings.mixtures.count);
      }
    });
    if (thread % 32 == 0) ptx::cp_async_bulk_wait_group_read<0>();
  }

  /// Tokens of a tile.
  static MHLA_DEVICE ConsecutiveTokens tokens_of(const Params& p, const Item& item,
                                                 std::int32_t tile) {
    return {item.origin.column + 64 * tile, p.stage.blocks.tokens()};
  }

  /// Waits for a tile of keys and maps it. With kRotary it rotates, too.
  static MHLA_DEVICE void map_keys(const Params& p, const Rings& rings, const Item& item,
                                   std::int32_t tile, RingCursor at, std::uint32_t thread) {
    const Features features{rings.key_values.slot(at), Rings::tile_rows(p, tile), thread};
    if constexpr (kRotary) {
      typename Features::Angles angles;
      angles.load(p.stage.key_angles, tokens_of(p, item, tile), thread);
      rings.key_values.consumer_wait(at);
      features.template map<E>(p.stage.key_map, angles);
    } else {
      rings.key_values.consumer_wait(at);
      features.template map<E>(p.stage.key_map);
    }
  }

  /// Waits for a tile of queries, maps and rotates it. With `with_keys` it does the same for the
  /// keys of the tile's tokens. If both have the same angles, these are read once.
  static MHLA_DEVICE void map_own_tile(const Params& p, const Rings& rings, const Item& item,
                                       std::int32_t tile, RingCursor query, bool with_keys,
                                       RingCursor key_value, std::uint32_t thread) {
    const std::int32_t rows = Rings::tile_rows(p, tile);
    const ConsecutiveTokens tokens = tokens_of(p, item, tile);
    typename Features::Angles angles;
    angles.load(p.stage.query_angles, tokens, thread);
    rings.queries.consumer_wait(query);
    Features{rings.queries.slot(query), rows, thread}.template map<0>(p.stage.query_map, angles);
    if (!with_keys) return;
    if (p.stage.key_angles != p.stage.query_angles) angles.load(p.stage.key_angles, tokens, thread);
    rings.key_values.consumer_wait(key_value);
    Features{rings.key_values.slot(key_value), rows, thread}.template map<E>(p.stage.key_map,
                                                                             angles);
  }

  /// Adds the mixture of earlier blocks to the sums, after scaling them as the mixture is. Adds its
  /// part of the denominators.
  template <int kTiles>
  static MHLA_DEVICE void add_mixture(const Params& p, const WorkTile& work,
                                      const Fragment<D>& features, const Mixture& mixture,
                                      RowPair& denominators, float (&sums)[kTiles][4]) {
    if (!kRotary && p.stage.normalization.denominator == Denominator::kKeySum) {
      const RowPair earlier = row_products<T>(features, mixture.key_sum(), work.lane);
      denominators.x += earlier.x;
      denominators.x_8 += earlier.x_8;
    }
    scale_sums(sums, p.stage.mixtures.scale * work.weight);
    ptx::fence_registers(sums);
    ptx::wgmma_fence();
    mixture.template multiply<T>(sums, features, work.column);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::fence_registers(sums);
  }

  /// Stores the outputs of the warp's rows of a tile, as far as the block has them.
  template <int kTiles>
  static MHLA_DEVICE void write(const Params& p, const WorkTile& work, std::int32_t tile,
                                RowPair den, float (&sums)[kTiles][4]) {
    const float unit = work.mixed ? inverse_power(p.stage.mixtures.scale) : work.weight;
    RowPair factors = p.stage.normalization.factors(sums, den, unit);
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

  /// Normalises and gates the sums of rows row.. of a block.
  template <int kTiles>
  static MHLA_DEVICE void apply_norm(const Params& p, const WorkTile& work, std::int32_t row,
                                     RowPair factors, float (&sums)[kTiles][4]) {
    RowPair squares{0, 0};
    add_squares(squares, sums, factors);
    squares = over_row(squares);
    if constexpr (8 * kTiles < E) {
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
