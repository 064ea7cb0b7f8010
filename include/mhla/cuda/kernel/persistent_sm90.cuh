#pragma once

/// \file
/// Persistent kernels of sm_90a: thread blocks stay on their multiprocessor. They take items in
/// steps of the grid. An item is a block of tokens of a pair, or a whole pair. A producer thread
/// after the warpgroups loads rings (tile/ring.cuh), which warpgroups consume.
///
///     shared memory    rings, a tile per warp, barriers
///
/// Items go by batch item, block, head. Rows of a token's heads are adjacent in device memory, and
/// neighbours in the grid read them together. Summaries of a batch item are written together, and
/// mixed while L2 has them (mixing_sm90.cuh).

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// Threads and shared memory of a persistent kernel.
/// \tparam kMovesRegisters_  The producer's warpgroup gives registers to the consumers, which need
///                           more than kRegisters.
/// \tparam kWarps            Consumer warps. If they use wgmma, they form 1, 2 or 4 warpgroups.
template <int D, int E, bool kMovesRegisters_, int kWarps = 4 * Width<D>::kPanelCount>
struct PersistentConfig {
  static_assert(Widths<D, E>::kTensorCopies, "other widths have kernels of sm_80 alone");

  static constexpr int kWarpgroups = kWarps / 4;
  static constexpr std::uint32_t kConsumers = kWarps;
  static constexpr std::uint32_t kProducer = kConsumers * 32;  ///< index of the thread
  static constexpr bool kMovesRegisters = kMovesRegisters_;
  static constexpr int kThreads = 32 * kWarps + (kMovesRegisters ? 128 : 32);
  static constexpr int kBlocksPerMultiprocessor = kWarpgroups == 1 ? 2 : 1;

  static constexpr int kRegisters = kWarpgroups == 4 ? 96 : 168;
  /// Registers per thread of consumers and of the producer's warpgroup, if these differ.
  static constexpr int kConsumerRegisters = kWarpgroups == 4 ? 112 : 240;
  static constexpr int kProducerRegisters = kWarpgroups == 4 ? 32 : 24;
  static_assert(!kMovesRegisters || kWarpgroups * kConsumerRegisters + kProducerRegisters <=
                                        (kWarpgroups + 1) * kRegisters,
                "consumers get what others give");

  using Tile = SharedTile<16, box_columns(E)>;

  // A multiprocessor has 228 KB. Each thread block takes 1 KB more than it asks for.
  static constexpr int kSharedBytes = kBlocksPerMultiprocessor == 2 ? 113 * 1024 : 227 * 1024;
  static constexpr int kBarrierBytes = 1024;
  static constexpr int kTiles = kSharedBytes - kBarrierBytes - kConsumers * Tile::kBytes;
  static constexpr int kRingBytes = kTiles;  ///< the rings come first
  static_assert(kSharedBytes <= shared_limit(Arch::kSm90a), "it all fits into shared memory");
  static_assert(kRingBytes % Width<D>::kAlignment == 0, "slots are aligned");

  static MHLA_DEVICE std::uint32_t barriers(std::uint32_t begin) {
    return begin + kSharedBytes - kBarrierBytes;
  }
  /// Staging tile of a warp's sums.
  static MHLA_DEVICE Tile tile(std::uint32_t warp) {
    return {ptx::shared_begin() + kTiles + warp * Tile::kBytes};
  }
};

/// Block `block` of pair `pair`.
struct Item {
  std::int32_t pair;
  std::int32_t block;
  BatchHead head;
  BlockOrigin origin;
};

/// Number of thread blocks for `items` items.
template <class Config>
constexpr unsigned persistent_grid(std::int32_t items, std::int32_t multiprocessors) {
  const int most = Config::kBlocksPerMultiprocessor * multiprocessors;
  return static_cast<unsigned>(items < most ? items : most);
}

/// Returns item i of all heads.
MHLA_DEVICE Item item_of(const TokenBlocks& blocks, std::int32_t heads, std::int32_t i) {
  const std::int32_t of_batch = heads * blocks.blocks();
  const std::int32_t batch = i / of_batch, in_batch = i % of_batch;
  const std::int32_t block = in_batch / heads, head = in_batch % heads;
  return {batch * heads + head, block, {batch, head}, blocks.origin(block)};
}

/// Calls visit(item) for the items of a thread block.
template <class Visit>
MHLA_DEVICE void for_items(const TokenBlocks& blocks, std::int32_t pairs, std::int32_t heads,
                           const Visit& visit) {
  const std::int32_t items = pairs * blocks.blocks();
  MHLA_CUDA_LOOP
  for (auto i = static_cast<std::int32_t>(ptx::ctaid_x()); i < items;
       i += static_cast<std::int32_t>(ptx::nctaid_x())) {
    visit(item_of(blocks, heads, i));
  }
}

/// Calls visit(batch item and head) for the pairs of a thread block.
template <class Visit>
MHLA_DEVICE void for_pairs(std::int32_t pairs, std::int32_t heads, const Visit& visit) {
  MHLA_CUDA_LOOP
  for (auto pair = static_cast<std::int32_t>(ptx::ctaid_x()); pair < pairs;
       pair += static_cast<std::int32_t>(ptx::nctaid_x())) {
    visit(batch_head(pair, heads));
  }
}

/// Runs a thread block. All threads run before(), then the producer runs produce() and warpgroups
/// run consume(). If produce() takes a thread, all threads after the warpgroups run it. before()
/// may write shared memory. It must not touch device memory that kernels of this call write, since
/// the previous kernel may still run. The next kernel may begin once all blocks have loaded their
/// last item. Barrier 2 is reserved.
template <class Config, class Before, class Produce, class Consume, class... Rings>
MHLA_DEVICE void run_persistent(const Before& before, const Produce& produce,
                                const Consume& consume, const Rings&... rings) {
  const std::uint32_t thread = ptx::tid_x();
  if (thread == 0) {
    (rings.init_barriers(Config::kConsumers), ...);
    ptx::fence_mbarrier_init();
  }
  before(thread);
  ptx::griddepcontrol_wait();
  ptx::bar_sync();
  if (thread < Config::kConsumers * 32) {
    if constexpr (Config::kMovesRegisters) ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    consume(thread);
    // Keeps warps from ending while other warps of their warpgroup start products.
    ptx::bar_sync(2, Config::kConsumers * 32);
  } else {
    if constexpr (Config::kMovesRegisters) ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    if constexpr (std::is_invocable_v<Produce, std::uint32_t>) {
      produce(thread);
    } else if (thread == Config::kProducer) {
      produce();
    }
    if (thread == Config::kProducer) ptx::griddepcontrol_launch_dependents();
  }
}

}  // namespace mhla::cuda
