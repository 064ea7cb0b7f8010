#pragma once

/// \file
/// Sizes and shared memory of causal_read_out_sm80.cuh.
///
///     (D, E)         slots               rows of S~ and of V in a slot     per multiprocessor
///     (64, 64)       4 of 8192 bytes     64, 64                            4 thread blocks
///     (72, 72)       4 of 10368          72, 64                            3
///     (128, 128)     5 of 16384          64, 64                            2
///     (128, 256)     5 of 16384          32, 32                            2

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/tile/layout.cuh"

namespace mhla::cuda {

template <int D, int E, Precision P>
struct CausalReadOutConfig {
  static_assert(has_kernels(D, E),
                "kernels have (D, E) of (64, 64), (72, 72), (128, 128) and (128, 256)");

  static constexpr int kTokens = 64;  ///< of queries, and of keys at a time
  static constexpr int kWarps = kTokens / 16;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kParts = P == Precision::kPair ? 2 : 1;

  using Rows = SharedTile<kTokens, D>;                             ///< of Q or K
  using State = SharedTile<E == 256 ? 32 : D == 72 ? 72 : 64, E>;  ///< rows of S~
  using Values = SharedTile<E == 256 ? 32 : kTokens, E>;
  using Output = SharedTile<16, E>;                 ///< of a warp
  static constexpr int kStates = D / State::kRows;  ///< in S~, or one of its parts
  static constexpr int kValues = kTokens / Values::kRows;

  static constexpr int kSlotBytes =
      State::kBytes > Rows::kBytes ? int{State::kBytes} : int{Rows::kBytes};
  static_assert(Values::kBytes <= kSlotBytes, "any item fits into a slot");
  static constexpr int kSlots = D == 128 ? 5 : 4;
  static constexpr int kKeySum = kSlots * kSlotBytes;  ///< where z~ is
  static constexpr int kBytes = kKeySum + 4 * D;
  static_assert(kWarps * Output::kBytes <= kKeySum, "outputs leave through the slots");
  static_assert(kBytes <= shared_limit(Arch::kSm80), "the ring fits into shared memory");
};

}  // namespace mhla::cuda
