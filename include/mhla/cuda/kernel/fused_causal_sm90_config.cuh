#pragma once

/// \file
/// Parameters, threads and shared memory of fused_causal_sm90.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixture_slot.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"

namespace mhla::cuda {

struct FusedCausalSm90Parameters {
  /// Tensor maps of the boxes that FusedCausalSm90::prepare finds: blocks of q, k and v, a warp's
  /// rows of o, and the last rows of a block of o.
  TensorMap maps[5];
  DirectParameters stage;
  TokenBoxes q_boxes;
  TokenBoxes k_boxes;
  TokenBoxes v_boxes;
  TokenBoxes o_boxes;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< multiprocessors of the device
};

template <int D, int E>
struct FusedCausalSm90Config {
  static_assert(Widths<D, E>::kFusedCausal, "a warp's rows have one panel");

  static constexpr std::uint32_t kSummaryWarps = 8;
  static constexpr std::uint32_t kReaders = 8;  ///< warps, after the summary warps
  static constexpr std::uint32_t kConsumers = kSummaryWarps + kReaders;
  static constexpr std::uint32_t kProducer = kConsumers * 32;  ///< index of the thread
  static constexpr bool kMovesRegisters = true;
  static constexpr int kThreads = kProducer + 128;
  static constexpr int kRegisters = 96;
  static constexpr int kConsumerRegisters = 112;  ///< with those that the producer gives up
  static constexpr int kProducerRegisters = 32;

  static constexpr int kRegions = 16;
  static constexpr int kMostBlocks = 2 * kRegions;
  static constexpr int kMostRows = 64;  ///< rows per block

  using Regions = SummaryRegions<kRegions, D, E>;
  using Mixture = MixtureSlot<D, E, Precision::kSingle>;

  // Slots of the rings.
  static constexpr std::uint32_t kKeyValueSlots = 3;
  static constexpr std::uint32_t kQuerySlots = 3;
  static constexpr std::uint32_t kMixtureSlots = 2;
  static constexpr std::uint32_t kKeyBytes = 64 * D * 2;
  static constexpr std::uint32_t kKeyValueBytes = 64 * (D + E) * 2;
  static constexpr std::uint32_t kQueryBytes = 64 * D * 2;

  // Layout of shared memory, in bytes: the rings, the regions of S, their z, the mixing matrix,
  // barriers.
  static constexpr std::uint32_t kQueries = kKeyValueSlots * kKeyValueBytes;
  static constexpr std::uint32_t kMixtures = kQueries + kQuerySlots * kQueryBytes;
  static constexpr std::uint32_t kSummaries = kMixtures + kMixtureSlots * Mixture::kBytes;
  static constexpr std::uint32_t kKeySums = kSummaries + Regions::kBytes;
  static constexpr std::uint32_t kMixing = kKeySums + kRegions * D * 4;
  static constexpr std::uint32_t kBarriers = kMixing + kMostBlocks * kMostBlocks * 4;
  static constexpr std::uint32_t kBarrierBytes =
      (2 * kKeyValueSlots + kQuerySlots + kMixtureSlots) * Ring::kBarrierBytes;
  static constexpr int kSharedBytes = kBarriers + kBarrierBytes;
  static_assert(kSharedBytes <= shared_limit(Arch::kSm90a), "it all fits into shared memory");
  static_assert(kSummaries % 1024 == 0, "what is swizzled begins there");
  static_assert(kMixing % 16 == 0, "four m are loaded together");

  /// Shared address of m_ib, b <= i.
  static MHLA_DEVICE std::uint32_t mixing(std::int32_t i, std::int32_t b) {
    return ptx::shared_begin() + kMixing + static_cast<std::uint32_t>(i * kMostBlocks + b) * 4;
  }

  /// Implements FusedCausalSm90::prepare.
  static constexpr bool prepare(const DirectParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, FusedCausalSm90Parameters& p,
                                TensorBox (&boxes)[5]) {
    const TokenBlocks& blocks = stage.query_blocks;
    const std::int32_t rows = blocks.slots(), heads = stage.heads, batch = pairs / heads;
    if (blocks.frames() * blocks.rows() != 1 || rows != blocks.block_columns()) return false;
    if (rows > kMostRows || blocks.blocks() > kMostBlocks) return false;
    p.stage = stage;
    p.pairs = pairs;
    p.multiprocessors = stage.matrices == 1 ? multiprocessors : pairs;
    if (!TokenBoxes::find(blocks, stage.q, D, heads, batch, rows, p.q_boxes, boxes[0]) ||
        !TokenBoxes::find(blocks, stage.k, D, heads, batch, rows, p.k_boxes, boxes[1]) ||
        !TokenBoxes::find(blocks, stage.v, E, heads, batch, rows, p.v_boxes, boxes[2]) ||
        !TokenBoxes::find(blocks, stage.o, E, heads, batch, rows, p.o_boxes, boxes[3])) {
      return false;
    }
    TokenBoxes::in_tiles(rows, 16, boxes[3], boxes[4]);
    return true;
  }
};

}  // namespace mhla::cuda
