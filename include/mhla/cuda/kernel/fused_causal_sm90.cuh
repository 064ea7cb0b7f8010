#pragma once

/// \file
/// Fused causal form: a pair in one thread block, for up to 32 blocks of up to 64 tokens:
///
///     S_b = sum_(j in b) phi(k_j) v_j^T        z_b = sum_(j in b) phi(k_j)
///     S~_i = sum_(b < i) m_ib S_b              z~_i = sum_(b < i) m_ib z_b
///     o_t = factor(den_t) (phi(q_t)^T S~_i + sum_(j <= t) m_ii (phi(q_t) . phi(k_j)) v_j)
///
/// t and j are in block i, a run of tokens; den_t is that of causal_read_out_sm90.cuh. A thread
/// block stays on its multiprocessor. It takes pairs in steps of the grid, and the blocks of a pair
/// one after another. A producer thread loads two rings: K and V of a block; Q. The consumers are:
///
///     8 warps     compute S~_i from earlier summaries, into a slot of a third ring; then phi(K) in
///                 place; then S_i = phi(K)^T V by mma.sync, each warp 16 rows and 32 columns
///     8 warps     read out as causal_read_out_sm90.cuh does, each warpgroup every second block:
///                 P = T(phi(Q) phi(K)^T), O = P V, then O = m_ii O + phi(Q) S~_i. O replaces Q,
///                 and tensor copies store it
///
/// Summaries and mixtures never leave shared memory, which has regions for 16 of them.
/// causal_summaries_sm90.cuh shows how 32 blocks share them.
///
/// Shared memory: fused_causal_sm90_config.cuh. Device memory: every input and output once, and the
/// mixing matrix once per thread block. Source: arXiv:2601.07832, section 4.2.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/causal_summaries_sm90.cuh"
#include "mhla/cuda/kernel/feature_tile.cuh"
#include "mhla/cuda/kernel/fused_causal_sm90_config.cuh"
#include "mhla/cuda/kernel/intra_block.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/rows.cuh"

namespace mhla::cuda {

template <class T, int D, int E>
class FusedCausalSm90 {
  using Config = FusedCausalSm90Config<D, E>;
  using Mixture = typename Config::Mixture;
  using Summaries = CausalSummaries<T, D, E>;
  using IntraBlockScores = IntraBlockTile<T, D, E>;

 public:
  using Params = FusedCausalSm90Parameters;
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kRegisters = Config::kRegisters;

  /// Fills all parameters but the maps, which describe `boxes`. Returns false if blocks are too
  /// large, too many or no runs of tokens, or tensor copies do not support the strides.
  static constexpr bool prepare(const DirectParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, Params& p, TensorBox (&boxes)[5]) {
    return Config::prepare(stage, pairs, multiprocessors, p, boxes);
  }

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs < p.multiprocessors ? pairs : p.multiprocessors);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const Rings rings;
    run_persistent<Config>([&](std::uint32_t thread) { prepare_shared(p, rings, thread); },
                           [&] { load(p, rings); },
                           [&](std::uint32_t thread) {
                             if (thread < Summaries::kThreads) {
                               summarize(p, rings, thread);
                             } else {
                               read(p, rings, thread - Summaries::kThreads);
                             }
                           });
  }

 private:
  struct Rings {
    Ring key_values;  ///< filled by tensor copies
    Ring features;    ///< the same slots, filled when phi(K) is computed
    Ring queries;
    Ring mixtures;

    MHLA_DEVICE Rings() {
      const std::uint32_t begin = ptx::shared_begin(), barriers = begin + Config::kBarriers;
      const auto after = [&](std::uint32_t slots) {
        return barriers + slots * Ring::kBarrierBytes;
      };
      constexpr std::uint32_t kKeyValues = Config::kKeyValueSlots;
      key_values = {begin, Config::kKeyValueBytes, barriers, kKeyValues};
      features = {begin, Config::kKeyValueBytes, after(kKeyValues), kKeyValues};
      queries = {begin + Config::kQueries, Config::kQueryBytes, after(2 * kKeyValues),
                 Config::kQuerySlots};
      mixtures = {begin + Config::kMixtures, Mixture::kBytes,
                  after(2 * kKeyValues + Config::kQuerySlots), Config::kMixtureSlots};
    }
  };

  /// Initialises the barriers and loads the mixing matrix.
  static MHLA_DEVICE void prepare_shared(const Params& p, const Rings& rings,
                                         std::uint32_t thread) {
    if (thread == 0) {
      rings.key_values.init_barriers(Config::kSummaryWarps);
      rings.features.init_barriers(Config::kReaders);
      rings.queries.init_barriers(Config::kReaders);
      rings.mixtures.init_barriers(Config::kReaders, Config::kSummaryWarps);
      ptx::fence_mbarrier_init();
    }
    if (thread < 5) ptx::prefetch_tensormap(p.maps[thread]);
    const std::int32_t blocks = p.stage.query_blocks.blocks();
    const auto pair = static_cast<std::int32_t>(ptx::ctaid_x());  // the only one of its matrix
    const MixingArray mixing =
        p.stage.matrices == 1 ? p.stage.mixing : p.stage.mixing.of(batch_head(pair, p.stage.heads));
    const auto column = static_cast<std::int32_t>(thread % 32);
    MHLA_CUDA_LOOP
    for (auto i = static_cast<std::int32_t>(thread / 32); i < blocks; i += kThreads / 32) {
      if (column > i) continue;
      ptx::st_shared_f32(Config::mixing(i, column), ptx::ld_global_nc_f32(mixing.row(i) + column));
    }
  }

  /// Positions of a block in the rings.
  struct Slots {
    RingCursor key_values;
    RingCursor queries;
    RingCursor mixtures;     ///< unused by the first block of a pair, which has no mixture
    std::uint32_t turn = 0;  ///< warpgroup that reads out the block
  };

  /// Calls visit(batch item and head, block, slots) for all blocks, in the order of the rings.
  template <class Visit>
  static MHLA_DEVICE void for_blocks(const Params& p, const Visit& visit) {
    Slots at;
    for_pairs(p.pairs, p.stage.heads, [&](BatchHead pair) {
      MHLA_CUDA_LOOP
      for (std::int32_t i = 0; i < p.stage.query_blocks.blocks(); ++i) {
        visit(pair, i, at);
        at.key_values = at.key_values.after(1, Config::kKeyValueSlots);
        at.queries = at.queries.after(1, Config::kQuerySlots);
        if (i > 0) at.mixtures = at.mixtures.after(1, Config::kMixtureSlots);
        at.turn ^= 1;
      }
    });
  }

  static MHLA_DEVICE void load(const Params& p, const Rings& rings) {
    const auto rows = static_cast<std::uint32_t>(p.stage.query_blocks.slots());
    const std::uint64_t once = ptx::createpolicy_evict_first();
    for_blocks(p, [&](BatchHead pair, std::int32_t block, const Slots& at) {
      const BlockOrigin origin = p.stage.query_blocks.origin(block);
      const auto load_box = [&](int map, const TokenBoxes& boxes, std::uint32_t to,
                                std::uint32_t barrier) {
        ptx::cp_async_bulk_tensor(to, p.maps[map], boxes.origin(origin, pair, 0, 0), barrier, once);
      };
      rings.features.producer_wait(at.key_values);
      rings.key_values.producer_acquire(at.key_values, rows * 2 * (D + E));
      const std::uint32_t keys = rings.key_values.slot(at.key_values);
      load_box(1, p.k_boxes, keys, rings.key_values.full(at.key_values));
      load_box(2, p.v_boxes, keys + Config::kKeyBytes, rings.key_values.full(at.key_values));
      rings.queries.producer_acquire(at.queries, rows * 2 * D);
      load_box(0, p.q_boxes, rings.queries.slot(at.queries), rings.queries.full(at.queries));
    });
  }

  /// Runs the warps that compute summaries.
  /// \param thread  index among these warps' threads
  static MHLA_DEVICE void summarize(const Params& p, const Rings& rings, std::uint32_t thread) {
    const Summaries summaries(thread);
    const std::int32_t blocks = p.stage.query_blocks.blocks();
    const std::int32_t rows = p.stage.query_blocks.slots();
    for_blocks(p, [&](BatchHead pair, std::int32_t i, const Slots& at) {
      if (i == Summaries::kRegions) summaries.replace(p.stage.mixing.of(pair), blocks);
      if (i > 0) {
        const auto mixed = summaries.mix(i);
        rings.mixtures.producer_wait(at.mixtures);
        summaries.store(Mixture{rings.mixtures.slot(at.mixtures)}, mixed);
        rings.mixtures.producer_commit(at.mixtures, summaries.lane);
      }
      rings.key_values.consumer_wait(at.key_values);
      const std::uint32_t keys = rings.key_values.slot(at.key_values);
      FeatureTile<T, D, Summaries::kThreads>{keys, rows, thread}.template map<E>(p.stage.key_map);
      if (thread == 0) ptx::mbarrier_arrive(rings.features.full(at.key_values));
      if (i + 1 < blocks) summaries.keep(i, summaries.sums_of(keys), p.stage.summary_scale);
      rings.key_values.consumer_release(at.key_values, summaries.lane);
    });
  }

  /// Runs the warps that read out.
  /// \param thread  index among these warps' threads
  static MHLA_DEVICE void read(const Params& p, const Rings& rings, std::uint32_t thread) {
    const std::uint32_t group = ptx::shfl_idx(thread / 128, 0);  // warp-uniform for ptxas
    const std::uint32_t warp = thread / 32 % 4, lane = thread % 32;
    for_blocks(p, [&](BatchHead pair, std::int32_t i, const Slots& at) {
      rings.queries.consumer_wait(at.queries);
      rings.features.consumer_wait(at.key_values);
      if (at.turn == group) {
        read_block(p, rings, pair, i, at, warp, lane);
        return;
      }
      rings.features.consumer_release(at.key_values, lane);
      rings.queries.consumer_release(at.queries, lane);
      if (i == 0) return;
      rings.mixtures.consumer_wait(at.mixtures);
      rings.mixtures.consumer_release(at.mixtures, lane);
    });
  }

  static MHLA_DEVICE void read_block(const Params& p, const Rings& rings, BatchHead pair,
                                     std::int32_t i, const Slots& at, std::uint32_t warp,
                                     std::uint32_t lane) {
    const std::int32_t rows = p.stage.query_blocks.slots();
    const auto row = static_cast<std::int32_t>(16 * warp);
    const std::uint32_t queries = rings.queries.slot(at.queries);
    Fragment<D> features{};  // zero in warps without queries, which access no other warp's
    if (row < rows) features = load_box_rows<D>(queries, 0, row, rows, lane);
    apply<T>(p.stage.query_map, features);
    ptx::fence_registers(features.x);
    const float weight = ptx::ld_shared_f32(Config::mixing(i, i));
    const float left = IntraBlockScores::kWeighs ? 1 : weight;  // the part of m_ii that P lacks
    float sums[1][E / 8][4] = {};
    float totals[4] = {};
    const std::uint32_t keys = rings.features.slot(at.key_values);
    IntraBlockScores{keys, keys + Config::kKeyBytes, weight, warp, lane}.add(totals, sums[0],
                                                                             features, true);
    rings.features.consumer_release(at.key_values, lane);
    RowPair den{totals[0] * left, totals[2] * left};
    float unit = left;
    if (i > 0) {
      rings.mixtures.consumer_wait(at.mixtures);
      const Mixture earlier{rings.mixtures.slot(at.mixtures)};
      const RowPair of_earlier = row_products<T>(features, earlier.key_sum(), lane);
      den = {den.x + of_earlier.x, den.x_8 + of_earlier.x_8};
      scale_sums(sums[0], p.stage.summary_scale * left);
      earlier.template add_products<T>(sums, features, lane);
      unit = inverse_power(p.stage.summary_scale);
      rings.mixtures.consumer_release(at.mixtures, lane);
    }
    if (row < rows) {
      const RowPair factors = p.stage.normalization.factors(sums[0], den, unit);
      store_sums<T, E / 8>(sums[0], 0, factors, SharedTile<64, E>{queries}, 16 * warp, 0, lane);
      ptx::fence_proxy_async();
      ptx::bar_warp_sync();
      if (lane == 0) {
        BlockOrigin origin = p.stage.query_blocks.origin(i);
        origin.column += row;
        ptx::cp_async_bulk_tensor_store(
            p.maps[rows - row < 16 ? 4 : 3], p.o_boxes.origin(origin, pair, 0, 0),
            queries + 16 * warp * (2 * E), ptx::createpolicy_evict_first());
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read<0>();  // the next queries replace the outputs
      }
    }
    rings.queries.consumer_release(at.queries, lane);
  }
};

}  // namespace mhla::cuda
