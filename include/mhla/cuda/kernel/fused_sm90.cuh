#pragma once

/// \file
/// Fused bidirectional form by tensor copies: a pair in one thread block, with its summaries in
/// shared memory:
///
///     S_b = sum_(j in b) phi(k_j) v_j^T        z_b = sum_(j in b) phi(k_j)
///     S~_i = sum_b m_ib S_b                    z~_i = sum_b m_ib z_b
///     o_t = phi(q_t)^T S~_i / den_t            t in block i, den_t = phi(q_t) . z~_i
///
/// A thread block stays on its multiprocessor and takes pairs in steps of the grid. A producer
/// thread loads boxes of up to 64 slots of a block (tile/token_boxes.cuh) into one ring. Each slot
/// gets a panel of 64 channels, or all 72. A pair's keys and values come block after block, then
/// its queries. The producer runs ahead as far as the ring allows. Queries arrive while summaries
/// are mixed, and the next pair's keys while the last outputs are written.
///
///     1  A team of warps computes S_b, 16 rows per warp, with A operand phi(K)^T and B operand V.
///        Teams alternate between blocks. The block's region of shared memory gets S_b times
///        summary_scale, rounded to T. z_b is a product with ones, in float.
///     2  Mixing multiplies m, as A operand, with the regions' numbers of the same row and columns,
///        as B operand. The products replace these numbers. Each warp has its rows and columns and
///        needs no other warp's. m is the sum of two numbers of T. z~ is mixed in float.
///     3  Warps alternate between groups of 16 queries. Outputs replace the queries, and leave in
///        pieces of 16 bytes, only where there is a token.
///
///     (D, E)        teams    threads      rows of a panel in shared memory
///     (64, 64)      4 of 4   512 + 32     128 bytes, swizzled
///     (72, 72)      3 of 5   480 + 32     144 bytes, not swizzled
///     (128, 128)    1 of 8   256 + 32     128 bytes, swizzled; two panels
///
/// Products of tokens use mma.sync. The tensor cores wait for memory anyway, and wgmma would save
/// few instructions.
///
/// Shared memory: fused_sm90_config.cuh. Device memory: every input and output once. Denominators
/// are kNone and kKeySum. kCrossQuery would need all queries before the first output. Source:
/// arXiv:2601.07832, section 4.1, eqs. (3) and (4).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/block_mixing_sm90.cuh"
#include "mhla/cuda/kernel/fused_sm90_config.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/kernel/summary_rows.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

struct FusedSm90Parameters {
  TensorMap maps[3];  ///< maps of the boxes of q, k and v that prepare() finds
  DirectParameters stage;
  TokenBoxes q_boxes;
  TokenBoxes k_boxes;
  TokenBoxes v_boxes;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< multiprocessors of the device
};

/// \tparam kRegions  at least the number of blocks of queries and of keys
template <class T, int D, int E, int kRegions>
class FusedSm90 {
 protected:
  using Config = FusedSm90Config<D, E, kRegions>;
  static_assert(Config::kFits, "so many summaries leave no room for tokens in shared memory");

 public:
  using Params = FusedSm90Parameters;
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kRegisters = Config::kRegisters;

  /// Fills all parameters but the maps, which describe `boxes`. Returns false if tensor copies have
  /// no boxes for these blocks and strides. Also returns false if a box of queries reaches rows
  /// that must stay zero after the keys.
  static constexpr bool prepare(const DirectParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, Params& p, TensorBox (&boxes)[3]) {
    const std::int32_t batch = pairs / stage.heads;
    p.stage = stage;
    p.pairs = pairs;
    p.multiprocessors = multiprocessors;
    const auto find = [&](const TokenBlocks& blocks, const ConstTokenTensor& tensor, TokenBoxes& to,
                          TensorBox& box) {
      return TokenBoxes::find(blocks, tensor, D, stage.heads, batch, Config::kMostRows, to, box);
    };
    return find(stage.query_blocks, stage.q, p.q_boxes, boxes[0]) &&
           find(stage.key_blocks, stage.k, p.k_boxes, boxes[1]) &&
           find(stage.key_blocks, stage.v, p.v_boxes, boxes[2]) &&
           (p.k_boxes.rows() % 16 == 0 || p.q_boxes.rows() <= p.k_boxes.rows());
  }

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs < p.multiprocessors ? pairs : p.multiprocessors);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const Ring ring = ring_of(p);
    run_persistent<Config>([&](std::uint32_t thread) { prepare_shared(p, ring, thread); },
                           [&] { load(p, ring); },
                           [&](std::uint32_t thread) { consume(p, ring, thread); }, ring);
  }

 protected:
  using Mixing = BlockMixing<T, Config>;
  using Box = RingBox<D>;
  static constexpr int kPanels = Box::kPanels;
  static constexpr int kPanelColumns = Box::Panel::kColumns;

  /// Position of a warp.
  struct WorkTile {
    std::uint32_t lane;
    std::uint32_t warp;  ///< warp of the consumers
    std::uint32_t team;
    std::uint32_t tile;  ///< tile of 16 rows of S: the warp of the team
  };

  static MHLA_DEVICE WorkTile work_tile(std::uint32_t thread) {
    const std::uint32_t warp = thread / 32;
    return {thread % 32, warp, warp / Config::kTeamWarps, warp % Config::kTeamWarps};
  }

  static MHLA_DEVICE Ring ring_of(const Params& p) {
    const std::int32_t q_rows = p.q_boxes.rows(), k_rows = p.k_boxes.rows();
    const auto steps = static_cast<std::uint32_t>((q_rows > k_rows ? q_rows : k_rows) + 15) / 16;
    const std::uint32_t begin = ptx::shared_begin();
    const std::uint32_t slot_bytes = steps * 16 * Box::kRowBytes;
    const std::uint32_t count = Config::kRingBytes / slot_bytes;
    return {begin, slot_bytes, begin + Config::kBarriers,
            count < Config::kMostSlots ? count : Config::kMostSlots};
  }

  /// Runs before the first barrier.
  static MHLA_DEVICE void prepare_shared(const Params& p, const Ring& ring, std::uint32_t thread) {
    if (thread < 3) ptx::prefetch_tensormap(p.maps[thread]);
    zero_slots(p, ring, thread);
    Mixing::prepare_shared(thread);
  }

  /// Zeroes bytes begin.. end - 1 after a shared address.
  static MHLA_DEVICE void zero(std::uint32_t address, std::uint32_t begin, std::uint32_t end,
                               std::uint32_t thread, std::uint32_t threads) {
    for (std::uint32_t at = begin + thread * 16; at < end; at += threads * 16) {
      ptx::st_shared_v4(address + at, {});
    }
  }

  /// Zeroes the rows of slots after the boxes, which products of 16 rows read.
  static MHLA_DEVICE void zero_slots(const Params& p, const Ring& ring, std::uint32_t thread) {
    const std::int32_t q_rows = p.q_boxes.rows(), k_rows = p.k_boxes.rows();
    const auto rows = static_cast<std::uint32_t>(q_rows < k_rows ? q_rows : k_rows);
    MHLA_CUDA_LOOP
    for (std::uint32_t slot = 0; slot < ring.count; ++slot) {
      zero(ring.slot({slot, 0}), rows * Box::kRowBytes, ring.slot_bytes, thread, kThreads);
    }
    ptx::fence_proxy_async();  // the larger boxes overwrite them
  }

  static MHLA_DEVICE void load(const Params& p, const Ring& ring) {
    RingCursor at;
    const TokenBlocks &keys = p.stage.key_blocks, &queries = p.stage.query_blocks;
    for_pairs(p.pairs, p.stage.heads, [&](BatchHead pair) {
      for_boxes(keys, p.k_boxes, [&](std::int32_t block, std::int32_t box) {
        const BlockOrigin origin = keys.origin(block);
        load_box(p.maps[1], ring, p.k_boxes, pair, origin, box, at);
        load_box(p.maps[2], ring, p.v_boxes, pair, origin, box, at);
      });
      for_boxes(queries, p.q_boxes, [&](std::int32_t block, std::int32_t box) {
        load_box(p.maps[0], ring, p.q_boxes, pair, queries.origin(block), box, at);
      });
    });
  }
  static MHLA_DEVICE void load_box(const TensorMap& map, const Ring& ring, const TokenBoxes& boxes,
                                   BatchHead pair, BlockOrigin origin, std::int32_t box,
                                   RingCursor& at) {
    MHLA_CUDA_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
      ring.producer_acquire(at, static_cast<std::uint32_t>(boxes.rows()) * Box::kRowBytes);
      ptx::cp_async_bulk_tensor(ring.slot(at), map,
                                boxes.origin(origin, pair, box, kPanelColumns * panel),
                                ring.full(at));
      at = at.after(1, ring.count);
    }
  }

  static MHLA_DEVICE void consume(const Params& p, const Ring& ring, std::uint32_t thread) {
    const std::uint32_t warp = thread / 32;
    // The members of work_tile(thread), whose call makes nvcc 13.0 spill registers of (72, 72).
    const WorkTile work{thread % 32, warp, warp / Config::kTeamWarps, warp % Config::kTeamWarps};
    const TokenBlocks& blocks = p.stage.query_blocks;
    const Mixing mixing(p.stage, thread);
    RingCursor at;
    auto tile = static_cast<std::int32_t>(warp);  // the warp's next 16 queries of a box
    for_pairs(p.pairs, p.stage.heads, [&](BatchHead pair) {
      summarize(p, ring, work, mixing, at);
      mixing.mix(pair);
      for_boxes(blocks, p.q_boxes, [&](std::int32_t block, std::int32_t box) {
        read_box(p, ring, work, mixing, Queries{[pair] { return pair; }, block, box}, at, tile);
      });
      mixing.end();
    });
  }

  static MHLA_DEVICE void summarize(const Params& p, const Ring& ring, const WorkTile& work,
                                    const Mixing& mixing, RingCursor& at) {
    SummaryRows<T, D, E> sums{};
    for_boxes(p.stage.key_blocks, p.k_boxes, [&](std::int32_t block, std::int32_t box) {
      const bool of_team = is_of_team(work, block);
      sum_box(p, ring, work, block, box, of_team, at, sums);
      if (of_team && box + 1 == p.k_boxes.count()) {
        mixing.keep(sums, block, work.tile);
        sums = {};
      }
    });
  }
  /// Adds a box of keys and values to the rows of its block's team.
  static MHLA_DEVICE void sum_box(const Params& p, const Ring& ring, const WorkTile& work,
                                  std::int32_t block, std::int32_t box, bool of_team,
                                  RingCursor& at, SummaryRows<T, D, E>& sums) {
    const TokenBlocks& blocks = p.stage.key_blocks;
    const std::int32_t rows = p.k_boxes.rows();
    ring.consumer_wait<2 * kPanels>(at);
    if (of_team) {
      sums.add_box(ring, at, work.tile, {blocks, blocks.origin(block), box * rows, rows},
                   p.stage.key_map, work.lane);
    }
    ring.consumer_release<2 * kPanels>(at, work.lane);
    at = at.after(2 * kPanels, ring.count);
  }
  static MHLA_DEVICE bool is_of_team(const WorkTile& work, std::int32_t block) {
    return static_cast<std::uint32_t>(block) % Config::kTeams == work.team;
  }

  /// \tparam Pair  function that returns the batch item and head
  template <class Pair>
  struct Queries {
    Pair pair;
    std::int32_t block;
    std::int32_t box;
  };

  template <class Pair>
  static MHLA_DEVICE void read_box(const Params& p, const Ring& ring, const WorkTile& work,
                                   const Mixing& mixing, const Queries<Pair>& queries,
                                   RingCursor& at, std::int32_t& tile) {
    const std::int32_t rows = p.q_boxes.rows(), tiles = (rows + 15) / 16;
    ring.consumer_wait<kPanels>(at);
    MHLA_CUDA_LOOP
    for (; tile < tiles; tile += Config::kConsumers) {
      const std::int32_t row = 16 * tile;
      read_rows(p, Box(ring, at, static_cast<std::uint32_t>(row)), work, mixing, queries,
                {p.stage.query_blocks, p.stage.query_blocks.origin(queries.block),
                 queries.box * rows + row, rows - row});
      if (row + 16 > p.k_boxes.rows()) {  // outputs extend beyond the keys' rows
        const auto keys = static_cast<std::uint32_t>(p.k_boxes.rows());
        zero(ring.slot(at), keys * Box::kRowBytes, (keys + 15) / 16 * 16 * Box::kRowBytes,
             work.lane, 32);
      }
      ptx::fence_proxy_async();  // boxes replace outputs
    }
    tile -= tiles;
    ring.consumer_release<kPanels>(at, work.lane);
    at = at.after(kPanels, ring.count);
  }

  /// Computes the outputs of the first 16 rows of a box.
  template <class Pair>
  static MHLA_DEVICE void read_rows(const Params& p, const Box& rows, const WorkTile& work,
                                    const Mixing& mixing, const Queries<Pair>& queries,
                                    const BoxTokens& tokens) {
    const DirectParameters& stage = p.stage;
    Fragment<D> q = load_rows(rows, 0, work.lane);
    apply<T>(stage.query_map, q);
    RowPair den{0, 0};
    if (stage.normalization.denominator == Denominator::kKeySum) {
      den = row_products<T>(q, mixing.key_sum(queries.block), work.lane);
    }
    const float unit = inverse_power(stage.summary_scale);
    // Factors are computed before the products, so that denominators need no registers there.
    RowPair factors{stage.normalization.factor(den.x) * unit,
                    stage.normalization.factor(den.x_8) * unit};
    float sums[E / 8][4] = {};
    multiply<T>(sums, q, mixing.mixture(queries.block), 0, 0, work.lane);
    Normalization::settle(sums, factors);
    const WarpTokens warp_tokens{tokens(static_cast<std::int32_t>(work.lane % 16))};
    ptx::bar_warp_sync();  // all threads have read the queries, which outputs replace
    write_sums<T>(sums, factors, SharedTile<16, kPanelColumns>{rows.panels[0]},
                  stage.o.head(queries.pair()), stage.o.token_stride, warp_tokens, work.lane);
  }
};

}  // namespace mhla::cuda
