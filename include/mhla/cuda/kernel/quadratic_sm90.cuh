#pragma once

/// \file
/// Quadratic form by tensor copies and wgmma: outputs of short sequences from the definition:
///
///     P_tj  = m_(block of t)(block of j) phi(q_t).phi(k_j)     in float, rounded to T
///     n_t   = sum_j P_tj v_j,   den_t = sum_j P_tj
///     o_t   = factor(den_t) * n_t                              [E], rounded to T
///
/// with phi rounded to T and sums in float. P of half must stay below 65520. If kCrossQuery, den_t
/// is r_t of query_sums.cuh. Keys and queries may be different sequences. Both are processed in
/// sequence order, whatever their blocks are.
///
/// A thread block stays on its multiprocessor and processes items. An item is a strip of up to 64
/// queries per warpgroup of a pair, and all keys. A producer thread loads two rings: strips of Q; K
/// and V, 64 keys per slot. Each warpgroup has 64 queries, with phi(q) and their sums in registers,
/// and processes the slots:
///
///     phi(K) in shared memory, each slot once for all, a part by each warp: that of the next slot
///                              while the products of this one run
///     P = T(m * phi(Q) phi(K)^T)   [64, 64], wgmma; with m from a table in shared memory
///     den += P 1                   mma.sync, or the scores of the own block if kCrossQuery
///     n += P V                     wgmma
///
/// Strips are shorter if there are fewer items than multiprocessors. If kCrossQuery, a strip has
/// all queries of a pair. Tensor copies fill rows after the last key with zeros. Their m are 0.
///
///     (D, E)        threads      queries per strip     registers of a consumer: n, phi(q), P
///     (64, 64)      512 + 128    256                   32 + 16 + 32 of 112
///     (128, 128)    256 + 128    128                   64 + 32 + 32 of 240
///     (128, 256)    256 + 128    128                   128 + 32 + 32
///
/// Shared memory: the rings, the table of m of each block of queries and each key, staging tiles of
/// O, 24 bytes of barriers per slot.
/// Device memory: Q and O once, K and V once, m once per thread block. L2: K and V once per strip.
/// Source: arXiv:2601.07832, section 4.1, eq. (5).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/cross_rows.cuh"
#include "mhla/cuda/kernel/key_mixing.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/kernel/quadratic_sm90_config.cuh"
#include "mhla/cuda/kernel/weighted_values.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"

namespace mhla::cuda {

template <class T, int D, int E, bool kCrossQuery = false>
struct QuadraticSm90 {
  using Params = QuadraticSm90Parameters;
  using Config = QuadraticSm90Config<D, E>;
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = Config::kBlocksPerMultiprocessor;
  static constexpr int kRegisters = Config::kRegisters;

  /// Fills all parameters but the maps, which describe `boxes`. Returns false if the mixing matrix
  /// is too large, if tensor copies do not support the strides, or if kCrossQuery and a thread
  /// block does not hold all queries and keys of a pair.
  static constexpr bool prepare(const DirectParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, Params& p, TensorBox (&boxes)[3]) {
    const std::int32_t heads = stage.heads, batch = pairs / heads;
    const std::int32_t queries = stage.query_blocks.tokens();
    const std::int32_t rows = Config::strip_rows(queries, pairs, kCrossQuery ? 0 : multiprocessors);
    p.stage = stage;
    p.strips = TokenBlocks(1, 1, queries, 1, 1, rows);
    p.parts = TokenBlocks(1, 1, stage.key_blocks.tokens(), 1, 1, Config::kKeys);
    const bool holds =
        p.strips.blocks() == 1 && stage.key_blocks.tokens() <= KeyMixing::kMostOwnKeys;
    if (kCrossQuery && !holds) return false;
    p.slots = Config::slots(rows, (kCrossQuery ? Cross::kBytes : 0) +
                                      std::int64_t{stage.query_blocks.blocks()} *
                                          KeyMixing::pitch(p.parts.blocks() * Config::kKeys));
    p.pairs = pairs;
    p.multiprocessors = stage.matrices == 1 ? multiprocessors : pairs * p.strips.blocks();
    const auto find = [&](const TokenBlocks& blocks, const ConstTokenTensor& tensor, int width,
                          TokenBoxes& token_boxes, TensorBox& box) {
      return TokenBoxes::find(blocks, tensor, width, heads, batch, blocks.slots(), token_boxes,
                              box);
    };
    return p.slots.key_values >= 2 && find(p.strips, stage.q, D, p.q_boxes, boxes[0]) &&
           find(p.parts, stage.k, D, p.k_boxes, boxes[1]) &&
           find(p.parts, stage.v, E, p.v_boxes, boxes[2]);
  }

  static constexpr unsigned grid(const Params& p, int) {
    return persistent_grid<Config>(p.pairs * p.strips.blocks(), p.multiprocessors);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const Rings rings = rings_of(p);
    run_persistent<Config>(
        [&](std::uint32_t thread) {
          if (thread != Config::kProducer) return;
          MHLA_CUDA_UNROLL
          for (int i = 0; i < 3; ++i) ptx::prefetch_tensormap(p.maps[i]);
        },
        [&] { load(p, rings); }, [&](std::uint32_t thread) { read(p, rings, thread); },
        rings.queries, rings.key_values, rings.features);
  }

 private:
  using Sums = WeightedValues<T, D, E, kCrossQuery>;
  using Cross = CrossRows<32 * Config::kConsumers, Config::kQueries>;

  struct Rings {
    Ring queries;
    Ring key_values;
    KeyFeatures features;
    KeyMixing mixing;
    Cross cross;
  };

  /// Work of a thread.
  struct WorkTile {
    std::uint32_t thread;
    std::uint32_t lane;
    std::int32_t row;  ///< first of the warp's 16 rows of the strip
  };

  /// Progress of a warp through the slots of all items.
  struct Keys {
    RingCursor at;
    std::int32_t left;
  };

  static MHLA_DEVICE Rings rings_of(const Params& p) {
    const auto rows = static_cast<std::uint32_t>(p.q_boxes.rows());
    const auto queries = static_cast<std::uint32_t>(p.slots.queries);
    const auto key_values = static_cast<std::uint32_t>(p.slots.key_values);
    const std::uint32_t begin = ptx::shared_begin();
    const std::uint32_t keys = begin + queries * rows * (2 * D);
    const std::uint32_t barriers = Config::barriers(begin);
    const std::uint32_t key_barriers = barriers + queries * Ring::kBarrierBytes;
    const KeyMixing mixing{keys + key_values * Config::kKeyValueBytes,
                           p.parts.blocks() * Config::kKeys};
    return {{begin, rows * (2 * D), barriers, queries},
            {keys, Config::kKeyValueBytes, key_barriers, key_values},
            {key_barriers + key_values * Ring::kBarrierBytes, key_values},
            mixing,
            {mixing.row(p.stage.query_blocks.blocks())}};
  }

  static MHLA_DEVICE void load(const Params& p, const Rings& rings) {
    const auto rows = static_cast<std::uint32_t>(p.q_boxes.rows());
    RingCursor query, key;
    for_items(p.strips, p.pairs, p.stage.heads, [&](const Item& item) {
      rings.queries.producer_acquire(query, rows * (2 * D));
      MHLA_CUDA_UNROLL
      for (std::uint32_t panel = 0; panel < D / 64; ++panel) {
        ptx::cp_async_bulk_tensor(
            rings.queries.slot(query) + panel * (rows * 128), p.maps[0],
            p.q_boxes.origin(item.origin, item.head, 0, static_cast<std::int32_t>(64 * panel)),
            rings.queries.full(query));
      }
      query = query.after(1, rings.queries.count);
      MHLA_CUDA_LOOP
      for (std::int32_t part = 0; part < p.parts.blocks(); ++part) {
        load_keys_and_values(p, rings.key_values, key, part, item.head);
        key = key.after(1, rings.key_values.count);
      }
    });
  }

  static MHLA_DEVICE void load_keys_and_values(const Params& p, const Ring& ring, RingCursor at,
                                               std::int32_t part, BatchHead head) {
    ring.producer_acquire(at, Config::kKeyValueBytes);
    MHLA_CUDA_UNROLL
    for (int panel = 0; panel < (D + E) / 64; ++panel) {
      const bool is_key = panel < D / 64;
      const TokenBoxes& boxes = is_key ? p.k_boxes : p.v_boxes;
      ptx::cp_async_bulk_tensor(
          ring.slot(at) + panel * Config::kPanelBytes, p.maps[is_key ? 1 : 2],
          boxes.origin({0, 0, Config::kKeys * part}, head, 0, 64 * panel - (is_key ? 0 : D)),
          ring.full(at));
    }
  }

  static MHLA_DEVICE void read(const Params& p, const Rings& rings, std::uint32_t thread) {
    // Tells the compiler that the threads of a warp share the warp's index.
    const auto warp = static_cast<std::int32_t>(ptx::shfl_idx(thread / 32, 0));
    const WorkTile work{thread, thread % 32, 16 * warp};
    rings.mixing.store(matrix(p), p.stage.query_blocks, p.stage.key_blocks, thread,
                       Config::kConsumers * 32);
    if constexpr (kCrossQuery) rings.cross.store(p.stage, rings.mixing, thread);
    RingCursor query;
    Keys keys{{}, slots_of_all_items(p)};
    map_keys(p, rings, keys.at, work);  // its barrier also publishes the table
    for_items(p.strips, p.pairs, p.stage.heads, [&](const Item& item) {
      const std::int32_t behind = p.stage.query_blocks.tokens() - item.origin.column;
      const std::int32_t group = warp / 4 * 64;
      const bool any = group < p.q_boxes.rows() && group < behind;  // otherwise it only maps keys
      Sums sums{};
      rings.queries.consumer_wait(query);
      if (any) take_queries(p, rings, query, item, work, sums);
      rings.queries.consumer_release(query, work.lane);
      query = query.after(1, rings.queries.count);
      if (any) {
        add_keys<true>(p, rings, work, keys, sums);
        if constexpr (kCrossQuery) {
          const bool second = (rings.queries.count == 1 ? query.parity : query.slot) != 0;
          rings.cross.exchange(p.stage, item.head, second, work.row, work.lane, sums.den[0],
                               sums.den[2]);
        }
        write(p, item, work, sums);
      } else {
        add_keys<false>(p, rings, work, keys, sums);
        if constexpr (kCrossQuery) Cross::sync();
      }
    });
  }

  /// The matrix of the thread block's items.
  static MHLA_DEVICE MixingArray matrix(const Params& p) {
    if (p.stage.matrices == 1) return p.stage.mixing;
    const auto item = static_cast<std::int32_t>(ptx::ctaid_x());  // its only one
    return p.stage.mixing.of(item_of(p.strips, p.stage.heads, item).head);
  }

  /// Number of slots of keys that the thread block processes.
  static MHLA_DEVICE std::int32_t slots_of_all_items(const Params& p) {
    const std::int32_t items = p.pairs * p.strips.blocks();
    const auto thread_block = static_cast<std::int32_t>(ptx::ctaid_x());
    return ((items - thread_block - 1) / static_cast<std::int32_t>(ptx::nctaid_x()) + 1) *
           p.parts.blocks();
  }

  /// Computes the warp's part of phi(K) of a slot.
  static MHLA_DEVICE void map_keys(const Params& p, const Rings& rings, RingCursor at,
                                   const WorkTile& work) {
    constexpr std::uint32_t kStep = Config::kConsumers * 32;
    const std::uint32_t piece = rings.key_values.slot(at) + 16 * work.thread;
    rings.key_values.consumer_wait(at);
    p.stage.key_map.with_formula([&](auto phi) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t i = 0; i < Config::kKeys * D / 8 / kStep; ++i) {
        ptx::Words4 w = ptx::ld_shared_v4(piece + 16 * kStep * i);
        apply<T>(phi, w.x);
        ptx::st_shared_v4(piece + 16 * kStep * i, w);
      }
    });
    ptx::fence_proxy_async();
    ptx::bar_warp_sync();
    if (work.lane == 0) ptx::mbarrier_arrive(rings.features.all_here(at));
  }

  /// Loads phi(q) of the warp's rows, and the addresses of their m.
  static MHLA_DEVICE void take_queries(const Params& p, const Rings& rings, RingCursor at,
                                       const Item& item, const WorkTile& work, Sums& sums) {
    const std::int32_t rows = p.q_boxes.rows();
    sums.features = load_box_rows<D>(rings.queries.slot(at), static_cast<std::uint32_t>(rows) * 128,
                                     work.row, rows, work.lane);
    apply<T>(p.stage.query_map, sums.features);
    ptx::fence_registers(sums.features.x);
    rings.mixing.find_rows(p.stage.query_blocks, item.origin.column + work.row, work.lane,
                           sums.mixing);
  }

  /// Processes the slots of an item, with or without products.
  template <bool kMultiplies>
  static MHLA_DEVICE void add_keys(const Params& p, const Rings& rings, const WorkTile& work,
                                   Keys& keys, Sums& sums) {
    const std::int32_t parts = p.parts.blocks();
    MHLA_CUDA_LOOP
    for (std::int32_t part = 0; part < parts; ++part) {
      const RingCursor next = keys.at.after(1, rings.key_values.count);
      if constexpr (kMultiplies) {
        ptx::mbarrier_wait(rings.features.all_here(keys.at), keys.at.parity);
        if constexpr (kCrossQuery) rings.mixing.load_own_keys(sums.mixing, part, sums.own_keys);
        sums.start(rings.key_values.slot(keys.at), part);
      }
      if (--keys.left > 0) map_keys(p, rings, next, work);
      if constexpr (kMultiplies) sums.finish();
      rings.key_values.consumer_release(keys.at, work.lane);
      keys.at = next;
    }
  }

  static MHLA_DEVICE void write(const Params& p, const Item& item, const WorkTile& work,
                                Sums& sums) {
    const WarpTile tile = Config::tile(work.thread / 32);
    const ConsecutiveTokens tokens{item.origin.column + work.row, p.stage.query_blocks.tokens()};
    unsigned char* const o = p.stage.o.head(item.head);
    MHLA_CUDA_UNROLL
    for (int c = 0; c < Sums::kProducts; ++c) {
      const RowPair factors = p.stage.normalization.factors(sums.n[c], {sums.den[0], sums.den[2]});
      write_sums<T>(sums.n[c], factors, tile, o + c * 2 * Sums::kColumns, p.stage.o.token_stride,
                    tokens, work.lane);
    }
  }
};

}  // namespace mhla::cuda
