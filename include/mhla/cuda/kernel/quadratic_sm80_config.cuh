#pragma once

/// \file
/// Sizes and shared memory of quadratic_sm80.cuh.
///
///     (D, E)        warps   rows per warp    sums and phi(q) in registers   thread blocks
///     (64, 64)      4       32               64 + 32                        2 per multiprocessor
///     (72, 72)      8       16               36 + 18                        2
///     (128, 128)    8       16               64 + 32                        1
///     (128, 256)    8       16               128 + 32                       1

#include <algorithm>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixing_copy.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// \tparam CrossQuery  Denominator::kCrossQuery. All queries of a pair are in one thread block,
///                     which has twice the warps if D is small.
template <int D, int E, bool Causal, bool CrossQuery = false>
struct QuadraticConfig {
  static_assert(!(Causal && CrossQuery), "cross-query denominators read later queries");

  /// True if a warp has registers for more rows, or a multiprocessor for more warps.
  static constexpr bool kLight = Width<D>::kWarpTiles == 1;
  static constexpr int kQueries = CrossQuery && kLight ? 256 : 128;
  static constexpr int kKeys = 64;  ///< keys per item
  /// Tiles of 16 queries per warp.
  static constexpr int kRowTiles = !Causal && kLight && Width<D>::kWholeTiles ? 2 : 1;
  static constexpr int kWarps = kQueries / 16 / kRowTiles;
  static constexpr int kThreads = 32 * kWarps;

  using Queries = SharedTile<kQueries, D>;
  using Keys = SharedTile<kKeys, D>;
  using Values = SharedTile<kKeys, E>;
  using Output = SharedTile<16, E>;  ///< tile of a warp
  static constexpr int kItemBytes = Keys::kBytes + Values::kBytes;
  static constexpr int kSlotBytes = std::max(int{Queries::kBytes}, kItemBytes);
  static constexpr int kSlots = 2;
  static_assert(kWarps * Output::kBytes <= kSlots * kSlotBytes, "outputs leave through the slots");

  // Layout of shared memory, in bytes.
  static constexpr int kMixing = kSlots * kSlotBytes;
  static constexpr int kKeyBlocks = kMixing + MixingCopy::kBytes;
  static constexpr int kQuerySums = kKeyBlocks + kSlots * 4 * kKeys;  ///< of query_sums.cuh
  static constexpr int kBytes = kQuerySums + (CrossQuery ? 16 * kQueries : 0);
  static_assert(kBytes <= shared_limit(Arch::kSm80), "two slots fit into shared memory");
};

}  // namespace mhla::cuda
