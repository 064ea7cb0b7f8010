#pragma once

/// \file
/// Sizes and shared memory of fused_sm90.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// Sizes of the kernel for up to kRegions blocks of queries and of keys.
template <int D_, int E_, int kRegions_>
struct FusedSm90Config {
  static constexpr int D = D_, E = E_, kRegions = kRegions_;
  static_assert(D == E && Widths<D, E>::kTensorCopies, "tensor copies fill boxes of K and V");
  static_assert(kRegions >= 1 && kRegions <= 32, "the fused kernel mixes up to 32 blocks");

  static constexpr int kTeamWarps = Width<D>::kRowTiles;
  static constexpr int kTeams = Width<D>::kTeams;
  static constexpr std::uint32_t kConsumers = kTeams * kTeamWarps;  ///< number of warps
  static constexpr std::uint32_t kProducer = kConsumers * 32;       ///< index of the thread
  static constexpr bool kMovesRegisters = false;
  static constexpr int kThreads = kProducer + 32;
  /// Registers per thread: a scheduler has 512 for all its warps (three, five or four).
  static constexpr int kRegisters = 512 / ((kThreads / 32 + 3) / 4) / 8 * 8;

  static constexpr int kPanelColumns = Width<D>::kPanelColumns;
  static constexpr int kPanels = Width<D>::kPanelCount;  ///< panels of a box of q, k or v
  static constexpr int kMostRows = 64;                   ///< rows of a box
  static constexpr int kMostSlots = 64;
  static constexpr int kMostSlotBytes = kMostRows * kPanelColumns * 2;

  // Layout of shared memory, in bytes: the ring, the regions of S, z, 128 zero bytes in place of
  // absent blocks, barriers of the ring and of the regions.
  using Regions = SummaryRegions<kRegions, D, E>;
  static constexpr int kKeySumBytes = kRegions * D * 4;
  static constexpr int kReadBarrierBytes = kRegions * 8;
  static constexpr int kBarrierBytes = kMostSlots * Ring::kBarrierBytes + kReadBarrierBytes;
  static constexpr int kSharedBytes = shared_limit(Arch::kSm90a);
  static constexpr int kRingBytes =
      (kSharedBytes - Regions::kBytes - kKeySumBytes - 128 - kBarrierBytes) / 1024 * 1024;
  static constexpr int kSummaries = kRingBytes;
  static constexpr int kKeySums = kSummaries + Regions::kBytes;
  static constexpr int kZeros = (kKeySums + kKeySumBytes + 127) / 128 * 128;
  static constexpr int kBarriers = kZeros + 128;
  static constexpr int kReadBarriers = kBarriers + kMostSlots * Ring::kBarrierBytes;
  static_assert(kBarriers + kBarrierBytes <= kSharedBytes || kRingBytes <= 0);
  /// True if the ring holds two boxes of keys and values.
  static constexpr bool kFits = kRingBytes >= 4 * kPanels * kMostSlotBytes;
};

}  // namespace mhla::cuda
