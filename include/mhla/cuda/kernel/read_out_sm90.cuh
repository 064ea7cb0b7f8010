#pragma once

/// \file
/// Outputs of every query, with the copy engine and wgmma:
///
///     o_t = factor(den_t) phi(q_t)^T S~_i,   t in block i
///     den_t = phi(q_t) . z~_i                            kKeySum
///     den_t = sum_b m_ib s_bw, w the slot of t           kCrossQuery
///
/// A thread block stays and takes items pair * M + i in steps of the grid. A thread behind the
/// warpgroups loads, into two rings: S~_i as E / 64 panels of [D][64], where wgmma reads them, with
/// z~_i behind; and the boxes of Q (tile/token_boxes.cuh). D / 64 warpgroups take turns
/// at tiles of 64 slots of a box: Q to registers, phi, the slot given back; den, and products of up
/// to 128 columns at a time; out through 2048 bytes a warp in 16-byte pieces, only where there is a
/// token. Rows of a tile beyond the box repeat its last row, and are not written.
///
///     (D, E)        threads      per multiprocessor    slots of S~, pairs    sums of a thread
///     (64, 64)      128 + 32     2 thread blocks       3, 3                  32
///     (128, 128)    256 + 128    1                     2, 2                  64
///     (128, 256)    256 + 128    1                     2, 1                  64, twice
///
/// Shared memory: the rings, the tiles that O leaves through, 16 bytes of barriers a slot.
/// Device memory: Q, S~ and z~ once, O once; of kCrossQuery the M W scores of a pair for each of
/// its blocks.
/// Source: arXiv:2601.07832, section 4.1, eq. (4).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixture_slot.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"

namespace mhla::cuda {

struct ReadOutSm90Parameters {
  /// Of the boxes of q, of S~, of its low part, and of z~ that ReadOutSm90::prepare finds; those of
  /// boxes without a base are not read.
  TensorMap maps[4];
  ReadOutParameters stage;
  TokenBoxes q_boxes;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< of the device
};

template <int D, int E, Precision P>
struct ReadOutSm90Config : PersistentConfig<D, E, D == 128> {
  static constexpr int kMostRows = E == 256 ? 128 : 256;  // of a box of Q
  static constexpr int kColumns = E == 64 ? 64 : 128;     // of a product

  using Mixture = MixtureSlot<D, E, P>;
  static constexpr int kMixtures = D == 64 ? 3 : E == 256 && P == Precision::kPair ? 1 : 2;
  static constexpr int kMostQueries = 32;  // slots of Q

  static constexpr int kMixtureBytes = kMixtures * Mixture::kBytes;
  static constexpr int kQueryBytes = ReadOutSm90Config::kRingBytes - kMixtureBytes;
  static_assert(kMostRows * D * 2 <= kQueryBytes, "the ring of Q holds a box");
  static_assert((kMixtures + kMostQueries) * Ring::kBarrierBytes <=
                ReadOutSm90Config::kBarrierBytes);
};

template <class T, int D, int E, Precision P>
struct ReadOutSm90 {
  using Params = ReadOutSm90Parameters;
  using Config = ReadOutSm90Config<D, E, P>;
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = Config::kBlocksPerMultiprocessor;
  static constexpr int kRegisters = 168;

  /// Fills all but the maps, which are of `boxes`. Whether the kernel can do it: otherwise the copy
  /// engine has no boxes for these blocks and strides.
  static constexpr bool prepare(const ReadOutParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, Params& p, TensorBox (&boxes)[4]) {
    const std::int32_t blocks = stage.blocks.blocks();
    p.stage = stage;
    p.pairs = pairs;
    p.multiprocessors = multiprocessors;
    Config::Mixture::boxes(stage.mixtures, stage.normalization.denominator, blocks, pairs,
                           boxes + 1);
    return TokenBoxes::find(stage.blocks, stage.q, D, stage.heads, pairs / stage.heads,
                            Config::kMostRows, p.q_boxes, boxes[0]);
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
        },
        [&] { load(p, rings); }, [&](std::uint32_t thread) { read(p, rings, thread); },
        rings.mixtures, rings.queries);
  }

 private:
  static constexpr int kTiles = Config::kColumns / 8;
  using Mixture = typename Config::Mixture;

  struct Rings {
    Ring mixtures;
    Ring queries;
  };

  /// What a warp of a warpgroup works on.
  struct WorkTile {
    std::uint32_t warp;  // of the block
    std::uint32_t lane;
    Item item;
  };

  /// Tokens of slots first.. first + count - 1 of a block.
  struct BoxTokens {
    const TokenBlocks& blocks;
    BlockOrigin origin;
    std::int32_t first;
    std::int32_t count;
    MHLA_HOST_DEVICE constexpr std::int32_t operator()(std::int32_t row) const {
      return row < count ? blocks.token(origin, first + row) : -1;
    }
  };

  /// Bytes of a panel of a box of Q.
  static MHLA_DEVICE std::uint32_t panel_bytes(const Params& p) {
    return (static_cast<std::uint32_t>(p.q_boxes.rows()) + 7) / 8 * 1024;
  }

  static MHLA_DEVICE Rings rings_of(const Params& p) {
    const std::uint32_t begin = ptx::shared_begin();
    const std::uint32_t queries = begin + Config::kMixtureBytes;
    const std::uint32_t barriers = Config::barriers(begin);
    const std::uint32_t bytes = panel_bytes(p) * (D / 64);
    const std::uint32_t count = Config::kQueryBytes / bytes;
    return {{begin, Mixture::kBytes, barriers, Config::kMixtures},
            {queries, bytes, barriers + Config::kMixtures * Ring::kBarrierBytes,
             count < Config::kMostQueries ? count : Config::kMostQueries}};
  }

  static MHLA_DEVICE void load(const Params& p, const Rings& rings) {
    const bool key_sum = p.stage.normalization.denominator == Denominator::kKeySum;
    const auto bytes = static_cast<std::uint32_t>(p.q_boxes.rows()) * (2 * D);
    RingCursor mixture, query;
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      rings.mixtures.producer_acquire(mixture, Mixture::loaded_bytes(key_sum));
      Mixture{rings.mixtures.slot(mixture)}.load(p.maps + 1, item.pair, item.block, key_sum,
                                                 rings.mixtures.full(mixture));
      mixture = mixture.after(1, rings.mixtures.count);
      MHLA_CUDA_LOOP
      for (std::int32_t box = 0; box < p.q_boxes.count(); ++box) {
        rings.queries.producer_acquire(query, bytes);
        MHLA_CUDA_UNROLL
        for (int panel = 0; panel < D / 64; ++panel) {
          ptx::cp_async_bulk_tensor(
              rings.queries.slot(query) + static_cast<std::uint32_t>(panel) * panel_bytes(p),
              p.maps[0], p.q_boxes.origin(item.origin, item.head, box, 64 * panel),
              rings.queries.full(query));
        }
        query = query.after(1, rings.queries.count);
      }
    });
  }

  static MHLA_DEVICE void read(const Params& p, const Rings& rings, std::uint32_t thread) {
    const std::int32_t tiles = (p.q_boxes.rows() + 63) / 64;  // of a box
    RingCursor mixture, query;
    // The warpgroup's next tile, counted from the first of the box.
    auto tile = static_cast<std::int32_t>(thread / 128);
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      const WorkTile work{thread / 32, thread % 32, item};
      rings.mixtures.consumer_wait(mixture);
      const Mixture mixtures{rings.mixtures.slot(mixture)};
      MHLA_CUDA_LOOP
      for (std::int32_t box = 0; box < p.q_boxes.count(); ++box) {
        rings.queries.consumer_wait(query);
        if (tile >= tiles) rings.queries.consumer_release(query, work.lane);
        MHLA_CUDA_LOOP
        for (; tile < tiles; tile += Config::kWarpgroups) {
          const std::int32_t row = 64 * tile + 16 * static_cast<std::int32_t>(work.warp % 4);
          Fragment<D> features = load_box_rows<D>(rings.queries.slot(query), panel_bytes(p), row,
                                                  p.q_boxes.rows(), work.lane);
          if (tile + Config::kWarpgroups >= tiles) rings.queries.consumer_release(query, work.lane);
          apply<T>(p.stage.map, features);
          ptx::fence_registers(features.x);
          multiply(p, work, mixtures, features,
                   {p.stage.blocks, work.item.origin, box * p.q_boxes.rows() + row,
                    p.q_boxes.rows() - row});
        }
        tile -= tiles;
        query = query.after(1, rings.queries.count);
      }
      rings.mixtures.consumer_release(mixture, work.lane);
      mixture = mixture.after(1, rings.mixtures.count);
    });
  }

  /// The outputs of a warp's rows.
  static MHLA_DEVICE void multiply(const Params& p, const WorkTile& work, const Mixture& mixture,
                                   const Fragment<D>& features, const BoxTokens& tokens) {
    const WarpTile tile = Config::tile(work.warp);
    unsigned char* const o = p.stage.o.head(work.item.head);
    const RowPair factors = factors_of(p, work, mixture, features, tokens);
    const WarpTokens rows{tokens(static_cast<std::int32_t>(work.lane % 16))};
    MHLA_CUDA_UNROLL
    for (int column = 0; column < E; column += Config::kColumns) {
      float sums[kTiles][4] = {};
      ptx::fence_registers(sums);
      ptx::wgmma_fence();
      mixture.template multiply<T>(sums, features, column);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::fence_registers(sums);
      write_sums<T>(sums, factors, tile, o + 2 * column, p.stage.o.token_stride, rows, work.lane);
    }
  }

  /// What the numerators of a thread's two rows are multiplied by.
  static MHLA_DEVICE RowPair factors_of(const Params& p, const WorkTile& work,
                                        const Mixture& mixture, const Fragment<D>& features,
                                        const BoxTokens& tokens) {
    const Normalization& by = p.stage.normalization;
    RowPair den{};
    if (by.denominator == Denominator::kKeySum) {
      den = row_products<T>(features, mixture.key_sum(), work.lane);
    } else if (by.denominator == Denominator::kCrossQuery) {
      den = mixed_scores(p, work, tokens);
    }
    const float unit = inverse_power(p.stage.mixtures.scale);
    return {by.factor(den.x) * unit, by.factor(den.x_8) * unit};
  }

  /// sum_b m_ib s_bw for the slots w of a thread's two rows.
  static MHLA_DEVICE RowPair mixed_scores(const Params& p, const WorkTile& work,
                                          const BoxTokens& tokens) {
    const std::int32_t blocks = p.stage.blocks.blocks(), slots = p.stage.blocks.slots();
    const float* const weights = p.stage.mixing.row(work.item.block);
    const auto row = static_cast<std::int32_t>(work.lane / 4);
    const bool filled = tokens(row) >= 0, filled_8 = tokens(row + 8) >= 0;
    const float* scores = p.stage.scores +
                          static_cast<std::int64_t>(work.item.pair) * blocks * slots +
                          tokens.first + row;
    RowPair sum{0, 0};
    MHLA_CUDA_LOOP
    for (auto b = static_cast<std::int32_t>(work.lane % 4); b < blocks; b += 4) {
      const float m = ptx::ld_global_nc_f32(weights + b);
      const float* const own = scores + static_cast<std::int64_t>(b) * slots;
      if (filled) sum.x += m * ptx::ld_global_f32(own);
      if (filled_8) sum.x_8 += m * ptx::ld_global_f32(own + 8);
    }
    return over_row(sum);
  }
};

}  // namespace mhla::cuda
