#pragma once

/// \file
/// Sizes and shared memory of fused_sm80.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// Sizes of the fused kernel for up to kRegions blocks of queries and of keys.
/// \tparam kLimit  bytes of shared memory per thread block
template <int D, int E, int kRegions_, int kLimit = shared_limit(Arch::kSm80)>
struct FusedSm80Config {
  static_assert(D == E, "a thread's pieces of K and V are of the same tokens");
  static_assert(kRegions_ >= 1 && kRegions_ <= 32, "the fused kernel mixes up to 32 blocks");
  static constexpr int kRegions = kRegions_;

  static constexpr int kRowGroups = Width<D>::kTileWarps;  ///< of two warps, half the columns each
  static constexpr int kWarps = 2 * kRowGroups;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRowTiles = Width<D>::kWarpTiles;  ///< tiles of rows of S per warp
  static constexpr int kColumnTiles = (E / 8 + 1) / 2;  ///< odd E / 8: both halves have the middle

  static constexpr int kTokens = 32 / kRowTiles;        ///< keys and values per stage
  static constexpr int kQueryTokens = 16 * kRowGroups;  ///< queries per stage
  static constexpr int kStageBytes =
      SharedTile<kTokens, D>::kBytes + SharedTile<kTokens, E>::kBytes;
  static constexpr int kQueryStageBytes = SharedTile<kQueryTokens, D>::kBytes;
  static constexpr int kFilledBytes = kTokens * 2;  ///< bytes per stage

  using Regions = SummaryRegions<kRegions, D, E>;
  static constexpr int kFixedBytes = 128 + Regions::kBytes + kRegions * D * 4;

  /// Stages that fit into `bytes` bytes, at most 8.
  static constexpr int stages_in(int bytes) {
    const int stages = (bytes - kFixedBytes) / (kStageBytes + kFilledBytes);
    return bytes < kFixedBytes ? 0 : stages < 8 ? stages : 8;
  }
  static constexpr bool enough(int stages) {
    return stages >= 2 && stages * kStageBytes >= 2 * kQueryStageBytes;
  }

  /// The system reserves 1024 bytes of a multiprocessor's memory per thread block.
  static constexpr int kHalfLimit = (kLimit + 1024) / 2 - 1024;
  static constexpr bool kTwoBlocks = stages_in(kHalfLimit) >= 3 && enough(stages_in(kHalfLimit));
  static constexpr int kStages = stages_in(kTwoBlocks ? kHalfLimit : kLimit);
  static constexpr bool kFits = enough(kStages);
  static constexpr int kQueryStages = kStages * kStageBytes / kQueryStageBytes;

  // Layout of shared memory, in bytes.
  static constexpr int kZeros = kStages * kStageBytes;
  static constexpr int kSummaries = kZeros + 128;
  static constexpr int kKeySums = kSummaries + Regions::kBytes;
  static constexpr int kFilled = kKeySums + kRegions * D * 4;
  static constexpr int kBytes = kFilled + kStages * kFilledBytes;
};

}  // namespace mhla::cuda
