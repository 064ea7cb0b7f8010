#pragma once

/// \file
/// Read-out by tensor copies and wgmma (mma.sync without panels): outputs of every query:
///
///     o_t = factor(den_t) phi(q_t)^T S~_i,   t in block i; kRotary rotates this phi(q_t)
///     den_t = phi(q_t) . z~_i                            kKeySum
///     den_t = sum_b m_ib s_bw, w the slot of t           kCrossQuery
///
/// Thread blocks are persistent (persistent_sm90.cuh). A producer thread loads two rings: mixtures,
/// and boxes of Q (tile/token_boxes.cuh). A mixture is S~_i as E / 64 panels of [D][64] for wgmma,
/// or D rows, followed by z~_i. D / 64 warpgroups alternate between tiles of 64 slots of a box.
/// They load Q, compute phi, den and products, normalise and gate (tile/output_norm.cuh), and store
/// O in place of Q, with E columns. The producer stores a box of O before it loads the slot.
///
///     (D, E)        threads      per multiprocessor    slots of S~, at most    sums per thread
///     (64, 64)      128 + 32     2 thread blocks       3                       32
///     (72, 72)      128 + 32     2                     3                       36
///     (128, 128)    256 + 128    1                     2                       64
///     (128, 256)    256 + 128    1                     2                       128
///
/// Shared memory: the rings, 16 bytes of barriers per slot, 32 bytes per box for its origin in o.
/// Device memory: Q, S~, z~ and O once. kCrossQuery reads the M W scores of a pair once per block.
/// Mixtures stay in L2 longest. Source: arXiv:2601.07832, section 4.1, eq. (4).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixture_slot.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/kernel/read_out_sm90_config.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/output_norm.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P, bool kRotary = false>
struct ReadOutSm90 {
  using Params = ReadOutSm90Parameters;
  using Config = ReadOutSm90Config<D, E, P>;
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = Config::kBlocksPerMultiprocessor;
  static constexpr int kRegisters = 168;

  /// Fills all parameters but the maps, which describe `boxes`. Returns false if tensor copies have
  /// no boxes for these tensors.
  static constexpr bool prepare(const ReadOutParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, Params& p, TensorBox (&boxes)[5]) {
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
          Mixture::prefetch_maps(p.maps, 1, p.stage.normalization.denominator);
          ptx::prefetch_tensormap(p.maps[4]);
        },
        [&] { load(p, rings); }, [&](std::uint32_t thread) { read(p, rings, thread); },
        rings.mixtures, rings.boxes);
  }

 private:
  static constexpr int kTiles = Config::kColumns / 8;
  static constexpr int kParts = E / Config::kColumns;
  using Mixture = typename Config::Mixture;

  struct Rings {
    Ring mixtures;
    Ring boxes;             // of Q, then of O
    std::uint32_t origins;  // shared address
  };

  /// Work of a warp of a warpgroup.
  struct WorkTile {
    std::uint32_t warp;  // warp of the thread block
    std::uint32_t lane;
    Item item;
  };

  /// Rows row.. row + 15 of a box.
  struct BoxRows {
    std::uint32_t box;   // shared address
    std::int32_t first;  // slot of row 0 in the block
    std::int32_t row;
  };

  /// Bytes of a panel of a box.
  static MHLA_DEVICE std::uint32_t panel_bytes(const Params& p) {
    return (static_cast<std::uint32_t>(p.q_boxes.rows()) + 7) / 8 * (16 * Config::kPanelColumns);
  }

  static MHLA_DEVICE Rings rings_of(const Params& p) {
    const std::uint32_t bytes = panel_bytes(p) * (E / Config::kPanelColumns);
    const auto slots = Config::slots(static_cast<std::int32_t>(bytes), p.q_boxes.count());
    const auto mixtures = static_cast<std::uint32_t>(slots.mixtures);
    const std::uint32_t begin = ptx::shared_begin(), barriers = Config::barriers(begin);
    return {{begin, Mixture::kBytes, barriers, mixtures},
            {begin + mixtures * Mixture::kBytes, bytes, barriers + mixtures * Ring::kBarrierBytes,
             static_cast<std::uint32_t>(slots.boxes)},
            barriers + Config::kOrigins};
  }

  static MHLA_DEVICE void load(const Params& p, const Rings& rings) {
    const bool key_sum = p.stage.normalization.denominator == Denominator::kKeySum;
    const std::uint64_t once = ptx::createpolicy_evict_first();
    RingCursor mixture, slot;
    std::uint32_t free = rings.boxes.count;  // slots that have not been loaded yet
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      MHLA_CUDA_LOOP
      for (std::int32_t box = 0; box < p.q_boxes.count(); ++box) {
        if (free == 0) {
          store(p, rings, slot, once);
        } else {
          --free;
        }
        load_box(p, rings, slot, item, box, once);
        slot = slot.after(1, rings.boxes.count);
        if (box > 0) continue;
        rings.mixtures.producer_acquire(mixture, Mixture::loaded_bytes(key_sum));
        Mixture{rings.mixtures.slot(mixture)}.load(p.maps + 1, item.pair, item.block, key_sum,
                                                   rings.mixtures.full(mixture));
        mixture = mixture.after(1, rings.mixtures.count);
      }
    });
    MHLA_CUDA_LOOP
    for (std::uint32_t i = 0; i < rings.boxes.count; ++i) {
      if (i >= free) store(p, rings, slot, once);
      slot = slot.after(1, rings.boxes.count);
    }
  }

  static MHLA_DEVICE void load_box(const Params& p, const Rings& rings, RingCursor at,
                                   const Item& item, std::int32_t box, std::uint64_t policy) {
    const Ring& ring = rings.boxes;
    ring.producer_acquire(at, static_cast<std::uint32_t>(p.q_boxes.rows()) * (2 * D));
    MHLA_CUDA_UNROLL
    for (int panel = 0; panel < D / Config::kPanelColumns; ++panel) {
      const BoxOrigin from =
          p.q_boxes.origin(item.origin, item.head, box, Config::kPanelColumns * panel);
      ptx::cp_async_bulk_tensor(ring.slot(at) + static_cast<std::uint32_t>(panel) * panel_bytes(p),
                                p.maps[0], from, ring.full(at), policy);
    }
    const BoxOrigin origin = p.o_boxes.origin(item.origin, item.head, box, 0);
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 5; ++i) {
      ptx::st_shared(rings.origins + at.slot * Config::kOriginBytes + 4 * i,
                     static_cast<std::uint32_t>(origin.x[i]));
    }
  }

  /// Stores the slot's box of O when all warps have written it, and waits until it is read.
  static MHLA_DEVICE void store(const Params& p, const Rings& rings, RingCursor at,
                                std::uint64_t policy) {
    rings.boxes.producer_wait(at);
    BoxOrigin origin;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 5; ++i) {
      origin.x[i] = static_cast<std::int32_t>(
          ptx::ld_shared(rings.origins + at.slot * Config::kOriginBytes + 4 * i));
    }
    MHLA_CUDA_UNROLL
    for (int panel = 0; panel < E / Config::kPanelColumns; ++panel) {
      const auto panels = static_cast<std::uint32_t>(panel) * panel_bytes(p);
      ptx::cp_async_bulk_tensor_store(p.maps[4], origin, rings.boxes.slot(at) + panels, policy);
      origin.x[0] += Config::kPanelColumns;
    }
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read<0>();
  }

  static MHLA_DEVICE void read(const Params& p, const Rings& rings, std::uint32_t thread) {
    const std::int32_t rows = p.q_boxes.rows(), tiles = (rows + 63) / 64;  // tiles per box
    RingCursor mixture, slot;
    // Next tile of the warpgroup, counted from the first of the box.
    auto tile = static_cast<std::int32_t>(thread / 128);
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      const WorkTile work{thread / 32, thread % 32, item};
      rings.mixtures.consumer_wait(mixture);
      const Mixture mixtures{rings.mixtures.slot(mixture)};
      MHLA_CUDA_LOOP
      for (std::int32_t box = 0; box < p.q_boxes.count(); ++box) {
        rings.boxes.consumer_wait(slot);
        const std::uint32_t begin = rings.boxes.slot(slot);
        MHLA_CUDA_LOOP
        for (; tile < tiles; tile += Config::kWarpgroups) {
          const std::int32_t row = 64 * tile + 16 * static_cast<std::int32_t>(work.warp % 4);
          // Rows of other warps must not be read, since they become outputs.
          Fragment<D> features{};
          if (row < rows) {
            features = load_box_rows<D>(begin, panel_bytes(p), row, rows, work.lane);
            ptx::bar_warp_sync();
          }
          apply<T>(p.stage.map, features);
          ptx::fence_registers(features.x);
          multiply(p, work, mixtures, features, {begin, box * rows, row});
        }
        tile -= tiles;
        ptx::fence_proxy_async();
        rings.boxes.consumer_release(slot, work.lane);
        slot = slot.after(1, rings.boxes.count);
      }
      rings.mixtures.consumer_release(mixture, work.lane);
      mixture = mixture.after(1, rings.mixtures.count);
    });
  }

  /// Computes the outputs of a warp's rows.
  static MHLA_DEVICE void multiply(const Params& p, const WorkTile& work, const Mixture& mixture,
                                   Fragment<D>& features, const BoxRows& at) {
    const RowPair den = denominators(p, work, mixture, features, at);
    if constexpr (kRotary) {
      rotate<T>(features, p.stage.angles, tokens_of(p, work, at), work.lane);
      ptx::fence_registers(features.x);
    }
    float sums[kParts][kTiles][4] = {};
    mixture.template add_products<T>(sums, features, work.lane);
    const float unit = inverse_power(p.stage.mixtures.scale);
    RowPair factors;
    MHLA_CUDA_UNROLL
    for (auto& part : sums) factors = p.stage.normalization.factors(part, den, unit);
    if (p.stage.norm.normed) {
      RowPair squares{0, 0};
      MHLA_CUDA_UNROLL
      for (const auto& part : sums) add_squares(squares, part, factors);
      factors = p.stage.norm.template scaled<E>(factors, over_row(squares));
      const TokenPair tokens = tokens_of(p, work, at);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < kParts; ++i) {
        p.stage.norm.template apply<T>(sums[i], factors, i * Config::kColumns, work.item.head,
                                       tokens, work.lane);
      }
      factors = {1, 1};
    }
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kParts; ++i) {
      store_box_rows<T>(sums[i], factors, at.box, panel_bytes(p), i * Config::kColumns, at.row,
                        p.q_boxes.rows(), work.lane);
    }
  }

  /// Tokens of a thread's two rows.
  static MHLA_DEVICE TokenPair tokens_of(const Params& p, const WorkTile& work, const BoxRows& at) {
    const BoxTokens tokens{p.stage.blocks, work.item.origin, at.first, p.q_boxes.rows()};
    const std::int32_t row = at.row + static_cast<std::int32_t>(work.lane / 4);
    return {tokens(row), tokens(row + 8)};
  }

  /// Sums of weights of a thread's two rows.
  static MHLA_DEVICE RowPair denominators(const Params& p, const WorkTile& work,
                                          const Mixture& mixture, const Fragment<D>& features,
                                          const BoxRows& at) {
    const Denominator which = p.stage.normalization.denominator;
    if (which == Denominator::kKeySum) {
      return row_products<T>(features, mixture.key_sum(), work.lane);
    }
    return which == Denominator::kCrossQuery ? mixed_scores(p, work, at) : RowPair{};
  }

  /// Returns sum_b m_ib s_bw for the slots w of a thread's two rows.
  static MHLA_DEVICE RowPair mixed_scores(const Params& p, const WorkTile& work,
                                          const BoxRows& at) {
    const std::int32_t blocks = p.stage.blocks.blocks(), slots = p.stage.blocks.slots();
    const float* const weights = p.stage.mixing.of(work.item.head).row(work.item.block);
    const TokenPair tokens = tokens_of(p, work, at);
    const float* scores = p.stage.scores +
                          static_cast<std::int64_t>(work.item.pair) * blocks * slots + at.first +
                          at.row + work.lane / 4;
    RowPair sum{0, 0};
    MHLA_CUDA_LOOP
    for (auto b = static_cast<std::int32_t>(work.lane % 4); b < blocks; b += 4) {
      const float m = ptx::ld_global_nc_f32(weights + b);
      const float* const score = scores + static_cast<std::int64_t>(b) * slots;
      if (tokens.token >= 0) sum.x += m * ptx::ld_global_f32(score);
      if (tokens.token_8 >= 0) sum.x_8 += m * ptx::ld_global_f32(score + 8);
    }
    return over_row(sum);
  }
};

}  // namespace mhla::cuda
