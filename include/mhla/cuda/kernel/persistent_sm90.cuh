#pragma once

/// \file
/// Kernels of sm_90a whose thread blocks stay on their multiprocessor. What they work on are items,
/// a block of tokens of a pair each, or whole pairs, which they take in steps of the grid. A thread
/// behind the warpgroups loads into rings (tile/ring.cuh), the producer; warpgroups consume.
///
///     shared memory    rings, a tile of each warp, barriers
///
/// Items go by batch item, block, head: rows of a token's heads lie side by side in device memory,
/// and neighbours in the grid read them together; summaries of a batch item are written together,
/// and mixed while the second cache has them (mixing_sm90.cuh).

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

namespace mhla::cuda {

/// Threads and shared memory.
/// \tparam kMovesRegisters_  from the producer's warpgroup to the consumers, who need more than
///                           kRegisters
/// \tparam kWarps            that consume: in warpgroups, 1, 2 or 4 of them, where those multiply
template <int D, int E, bool kMovesRegisters_, int kWarps = D / 64 * 4>
struct PersistentConfig {
  static_assert(has_kernels(D, E), "kernels have the (D, E) of widths.cuh");

  static constexpr int kWarpgroups = kWarps / 4;
  static constexpr std::uint32_t kConsumers = kWarps;
  static constexpr std::uint32_t kProducer = kConsumers * 32;  ///< thread
  static constexpr bool kMovesRegisters = kMovesRegisters_;
  static constexpr int kThreads = 32 * kWarps + (kMovesRegisters ? 128 : 32);
  static constexpr int kBlocksPerMultiprocessor = kWarpgroups == 1 ? 2 : 1;

  static constexpr int kRegisters = kWarpgroups == 4 ? 96 : 168;
  /// Of a consumer and of a thread behind, where they move.
  static constexpr int kConsumerRegisters = kWarpgroups == 4 ? 112 : 240;
  static constexpr int kProducerRegisters = kWarpgroups == 4 ? 32 : 24;
  static_assert(!kMovesRegisters || kWarpgroups * kConsumerRegisters + kProducerRegisters <=
                                        (kWarpgroups + 1) * kRegisters,
                "consumers get what others give");

  using Tile = SharedTile<16, box_columns(E)>;

  // A multiprocessor has 228 KB, of which each thread block takes one more than it asks for.
  static constexpr int kSharedBytes = kBlocksPerMultiprocessor == 2 ? 113 * 1024 : 227 * 1024;
  static constexpr int kBarrierBytes = 1024;
  static constexpr int kTiles = kSharedBytes - kBarrierBytes - kConsumers * Tile::kBytes;
  static constexpr int kRingBytes = kTiles;  ///< the rings come first
  static_assert(kSharedBytes <= shared_limit(Arch::kSm90a), "it all fits into shared memory");
  static_assert(kRingBytes % (D == 72 ? 128 : 1024) == 0, "slots begin at multiples of 1024");

  static MHLA_DEVICE std::uint32_t barriers(std::uint32_t begin) {
    return begin + kSharedBytes - kBarrierBytes;
  }
  /// What sums of a warp pass through.
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

/// Thread blocks for so many items.
template <class Config>
constexpr unsigned persistent_grid(std::int32_t items, std::int32_t multiprocessors) {
  const int most = Config::kBlocksPerMultiprocessor * multiprocessors;
  return static_cast<unsigned>(items < most ? items : most);
}

/// Calls visit(item) for the items of a thread block.
template <class Visit>
MHLA_DEVICE void for_items(const TokenBlocks& blocks, std::int32_t pairs, std::int32_t heads,
                           const Visit& visit) {
  const std::int32_t items = pairs * blocks.blocks();
  const std::int32_t of_batch = heads * blocks.blocks();
  MHLA_CUDA_LOOP
  for (auto i = static_cast<std::int32_t>(ptx::ctaid_x()); i < items;
       i += static_cast<std::int32_t>(ptx::nctaid_x())) {
    const std::int32_t batch = i / of_batch, own = i % of_batch;
    const std::int32_t block = own / heads, head = own % heads;
    visit(Item{batch * heads + head, block, {batch, head}, blocks.origin(block)});
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

/// What the threads of a block do: before(thread) by all, which may write to shared memory, and
/// touches of device memory nothing that a kernel of the call writes or wrote: the one before may
/// still run; then produce() by one, or produce(thread) by all behind the warpgroups, and
/// consume(thread) by those of warpgroups. The next kernel may begin once all blocks have loaded
/// their last item. Barrier 2 is taken.
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
    // No warp ends while others of its warpgroup start products.
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
