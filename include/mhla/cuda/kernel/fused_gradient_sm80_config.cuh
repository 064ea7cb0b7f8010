#pragma once

/// \file
/// Parameters, sizes and shared memory of fused_gradient_sm80.cuh and block_gradient_sm80.cuh.

#include <algorithm>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/gradient_parameters.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

struct FusedGradientParameters : GradientParameters {
  TokenBlocks query_blocks;
  TokenBlocks key_blocks;
  float query_scale;    ///< of dS~ in shared memory: summary_scale of query blocks
  float key_scale;      ///< of S and S~ in shared memory: summary_scale of key blocks
  unsigned char* kept;  ///< [thread blocks, kKeptBytes], scratch for S, or null

  /// Returns true if keys and values are read a second time.
  MHLA_HOST_DEVICE constexpr bool wants_keys() const {
    return dk.data != nullptr || dv.data != nullptr;
  }
};

/// Largest widths of a kernel for several blocks, and for one: sums and operands of a warp fit into
/// its registers.
inline constexpr int kWidestFusedGradient = 96, kWidestBlockGradient = 128;

/// \tparam kLimit   bytes of shared memory per thread block
/// \tparam kBlocks  blocks whose summaries are in shared memory; 0: as many as fit
template <int D, int kLimit, int kBlocks = 0>
struct FusedGradientConfig {
  static_assert(D <= (kBlocks == 1 ? kWidestBlockGradient : kWidestFusedGradient));
  using Region = SummaryRegions<1, D, D>;
  static constexpr int kZeroBytes = kBlocks == 1 ? 0 : 128;

  /// Bytes of a stage: two tiles, and the token of each row.
  static constexpr int stage_bytes(int rows) { return 4 * rows * D + 4 * rows; }
  /// Bytes besides the stages: zeros, regions, z and z~, and numbers of rows.
  static constexpr int fixed_bytes(int regions, int rows) {
    return kZeroBytes + regions * (Region::kRegionBytes + 8 * D) + 24 * rows;
  }
  /// Stages that fit, at most 6.
  static constexpr int stages_of(int regions, int rows) {
    const int bytes = kLimit - fixed_bytes(regions, rows);
    return bytes < 0 ? 0 : std::min(bytes / stage_bytes(rows), 6);
  }
  static constexpr int most_regions() {
    for (const int regions : {16, 8, 4}) {
      if (stages_of(regions, 32) >= 2) return regions;
    }
    return 0;
  }

  /// Most blocks of queries, and of keys; 0 if there is no kernel.
  static constexpr int kRegions = kBlocks > 0 ? kBlocks : most_regions();
  static constexpr bool kFits = kRegions > 0;
  static constexpr int kPieces = D / 8;
  /// True if registers of 256 threads are too few for S.
  static constexpr bool kWide = D > kWidestFusedGradient;
  /// Tokens per stage. More of them cost fewer instructions each. A thread's registers hold two
  /// rows of a piece each, but not two wider ones.
  static constexpr int kRows = kWide || (D <= 64 && stages_of(kRegions, 64) >= 2) ? 64 : 32;
  static constexpr int kStages = stages_of(kRegions, kRows);
  static constexpr int kThreads = kWide ? 512 : 256;
  static constexpr int kWarps = kThreads / 32;

  // Tiles of S and dS~: warps share kRowTiles x kGroups tiles of 16 x 8 kColumnTiles.
  static constexpr int kRowTiles = Width<D>::kRowTiles;
  static constexpr int kColumnTiles = (kPieces - 1) / (kWarps / kRowTiles) + 1;
  static constexpr int kGroups = kPieces / kColumnTiles;
  static_assert(kPieces % kColumnTiles == 0 && kGroups * kRowTiles <= kWarps);

  // Products of tokens: kTeam warps share 16 rows. kOutWarps of them have kOutTiles tiles of 8
  // columns each. All of them share the rows' copies, eight threads per row.
  static constexpr int kTeam = 16 * kWarps / kRows;
  static constexpr int kPasses = 8 * kRows / kThreads;  ///< rows per thread
  static constexpr int kOutTiles = (kPieces - 1) / kTeam + 1;
  static constexpr int kOutWarps = kPieces / kOutTiles;
  static_assert(kPieces % kOutTiles == 0 && kOutWarps <= kTeam && kTeam <= 4);

  // S of a pair in device memory, as A operands of 16 blocks, or of 8.
  static constexpr int kUnitPieces = kRegions > 8 ? 2 : 4;  ///< pieces of an operand, of each block
  static constexpr int kUnits = D * kPieces / kUnitPieces;
  static constexpr int kKeptBytes = 512 * kUnits;

  // Layout of shared memory, in bytes.
  static constexpr int kTileBytes = 2 * kRows * D;
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kZeros = kStages * kStageBytes;
  static constexpr int kSummaries = kZeros + kZeroBytes;
  static constexpr int kSums = kSummaries + kRegions * Region::kRegionBytes;  ///< z, then dz
  static constexpr int kMixedSums = kSums + kRegions * D * 4;                 ///< z~, then dz~
  static constexpr int kProducts = kMixedSums + kRegions * D * 4;  ///< [kRows, 4] of each warp
  static constexpr int kFactors = kProducts + 16 * kRows;
  static constexpr int kWeights = kFactors + 4 * kRows;  ///< c of two rows, high parts, then low
  static constexpr int kTokens = kWeights + 4 * kRows;   ///< [kStages, kRows]
  static constexpr int kBytes = kTokens + kStages * 4 * kRows;
  static_assert(kBytes <= kLimit);
  static constexpr Arch kInstructionSet =
      kBytes <= shared_limit(Arch::kSm80) ? Arch::kSm80 : Arch::kSm90a;
  static_assert(!kFits || kBlocks == 1 || 1024 * kWarps <= kZeros,
                "sums of warps fit into the stages");
};

/// Bytes of shared memory of a kernel for one block. Three thread blocks fit into a multiprocessor
/// of sm_80. If two stages then do not fit, one thread block fits into every device.
template <int D>
inline constexpr int kBlockGradientLimit = [] {
  constexpr int kThree = 53 * 1024;
  return FusedGradientConfig<D, kThree, 1>::kStages >= 2 ? kThree : kLeastShared;
}();

/// The least limit with which the kernel is the same as with kLimit.
template <int D, int kLimit>
inline constexpr int kFusedGradientLimit = [] {
  constexpr int kBytes = FusedGradientConfig<D, kLimit>::kBytes;
  if (kBytes == FusedGradientConfig<D, kLeastShared>::kBytes) return kLeastShared;
  constexpr int kLimit80 = shared_limit(Arch::kSm80);
  return kBytes == FusedGradientConfig<D, kLimit80>::kBytes ? kLimit80 : kLimit;
}();

}  // namespace mhla::cuda
