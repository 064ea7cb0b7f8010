#pragma once

/// \file
/// The form of fused_sm90.cuh, which sums the next pair while it reads out one, with the same bits:
///
///     summaries of the first pair
///     for each pair   mixtures
///                     for each block   outputs of the pair, summary of the next pair
///
/// Once all warps have read the mixture of a block, its region takes the next pair's summary. So
/// device memory reads and writes at a time, and is idle only while summaries are mixed.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/block_mixing_sm90.cuh"
#include "mhla/cuda/kernel/fused_sm90.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/kernel/summary_rows.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

template <class T, int D, int E, int kRegions>
class FusedOverlappingSm90 : public FusedSm90<T, D, E, kRegions> {
  static_assert(D < 128, "wider rows would spill registers");
  using Base = FusedSm90<T, D, E, kRegions>;
  using typename Base::Config;
  using typename Base::Mixing;
  using typename Base::WorkTile;

 public:
  using typename Base::Params;

  MHLA_DEVICE void operator()(const Params& p) const {
    const Ring ring = Base::ring_of(p);
    run_persistent<Config>([&](std::uint32_t thread) { Base::prepare_shared(p, ring, thread); },
                           [&] { load(p, ring); },
                           [&](std::uint32_t /*thread*/) { consume(p, ring); }, ring,
                           typename Mixing::ReadBarriers{});
  }

 private:
  /// Calls mix(pair) for each pair of the thread block, read(pair, block) for its blocks of
  /// queries, and sum(next pair, block) for blocks of keys. The first pair is summed before.
  template <class Sum, class Mix, class Read>
  static MHLA_DEVICE void for_steps(const Params& p, const Sum& sum, const Mix& mix,
                                    const Read& read) {
    const TokenBlocks &keys = p.stage.key_blocks, &queries = p.stage.query_blocks;
    const auto step = static_cast<std::int32_t>(ptx::nctaid_x());
    MHLA_CUDA_LOOP
    for (std::int32_t pair = static_cast<std::int32_t>(ptx::ctaid_x()) - step; pair < p.pairs;
         pair += step) {
      if (pair >= 0) mix(pair);
      MHLA_CUDA_LOOP
      for (std::int32_t block = 0; block < keys.blocks() || block < queries.blocks(); ++block) {
        if (pair >= 0 && block < queries.blocks()) read(pair, block);
        const std::int32_t next = pair + step;
        if (next < p.pairs && block < keys.blocks()) sum(next, block);
      }
    }
  }

  static MHLA_DEVICE void load(const Params& p, const Ring& ring) {
    RingCursor at;
    for_steps(
        p,
        [&](std::int32_t pair, std::int32_t block) {
          const BlockOrigin origin = p.stage.key_blocks.origin(block);
          const BatchHead of = batch_head(pair, p.stage.heads);
          MHLA_CUDA_LOOP
          for (std::int32_t box = 0; box < p.k_boxes.count(); ++box) {
            Base::load_box(p.maps[1], ring, p.k_boxes, of, origin, box, at);
            Base::load_box(p.maps[2], ring, p.v_boxes, of, origin, box, at);
          }
        },
        [](std::int32_t) {},
        [&](std::int32_t pair, std::int32_t block) {
          const BlockOrigin origin = p.stage.query_blocks.origin(block);
          const BatchHead of = batch_head(pair, p.stage.heads);
          MHLA_CUDA_LOOP
          for (std::int32_t box = 0; box < p.q_boxes.count(); ++box) {
            Base::load_box(p.maps[0], ring, p.q_boxes, of, origin, box, at);
          }
        });
  }

  /// Each step finds its thread and its pair again: registers are scarce while summaries are mixed.
  static MHLA_DEVICE void consume(const Params& p, const Ring& ring) {
    RingCursor at;
    std::uint32_t parity = 1;  // of the phases in which mixtures of the last pair were read
    auto tile = static_cast<std::int32_t>(ptx::tid_x() / 32);  // as in fused_sm90.cuh
    for_steps(
        p,
        [&](std::int32_t /*pair*/, std::int32_t block) {
          const std::uint32_t thread = ptx::tid_x();
          const WorkTile work = Base::work_tile(thread);
          const bool of_team = Base::is_of_team(work, block);
          SummaryRows<T, D, E> sums{};
          MHLA_CUDA_LOOP
          for (std::int32_t box = 0; box < p.k_boxes.count(); ++box) {
            Base::sum_box(p, ring, work, block, box, of_team, at, sums);
          }
          if (!of_team) return;
          const Mixing mixing(p.stage, thread);
          mixing.wait_until_read(block, parity);
          mixing.keep(sums, block, work.tile);
        },
        [&](std::int32_t pair) {
          parity ^= 1;
          Mixing(p.stage, ptx::tid_x()).mix(batch_head(pair, p.stage.heads));
        },
        [&](std::int32_t pair, std::int32_t block) {
          const std::uint32_t thread = ptx::tid_x();
          const WorkTile work = Base::work_tile(thread);
          const Mixing mixing(p.stage, thread);
          const auto of = [&p, pair] { return batch_head(pair, p.stage.heads); };
          MHLA_CUDA_LOOP
          for (std::int32_t box = 0; box < p.q_boxes.count(); ++box) {
            Base::read_box(p, ring, work, mixing, typename Base::Queries{of, block, box}, at, tile);
          }
          mixing.release(block);
        });
  }
};

}  // namespace mhla::cuda
