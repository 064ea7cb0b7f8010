#pragma once

/// \file
/// Sizes, shared memory and items of causal_read_out_sm80.cuh.
///
///     (D, E)         slots               rows of S~ and of V in a slot     per multiprocessor
///     (64, 64)       4 of 8192 bytes     64, 64                            4 thread blocks
///     (72, 72)       4 of 10368          72, 64                            3
///     (128, 128)     5 of 16384          64, 64                            2
///     (128, 256)     5 of 16384          32, 32                            2

#include <algorithm>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/tile/factors.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// \tparam T  element type of the tensors; those of 16 bits have the same sizes
template <int D, int E, Precision P, class T = bfloat16>
struct CausalReadOutConfig {
  static constexpr int kTokens = 64;  ///< queries per thread block, and keys per item
  static constexpr int kWarps = kTokens / 16;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kParts = P == Precision::kPair ? 2 : 1;

  /// Thread blocks that share the columns of E: if D is wide, one holds no more sums.
  static constexpr int kColumnParts = Width<D>::kParts > 1 ? Width<E>::kParts : 1;
  static constexpr int kColumns = E / kColumnParts;
  static constexpr int kStateRows = Width<D>::kPanels ? kTokens : D;
  using Rows = FactorTile<T, kTokens, D>;                                    ///< tile of Q or K
  using State = SharedTile<kStateRows / Width<kColumns>::kParts, kColumns>;  ///< rows of S~
  using Values = FactorTile<T, kTokens / Width<kColumns>::kParts, kColumns>;
  using Output = SharedTile<16, kColumns>;          ///< tile of a warp
  static constexpr int kStates = D / State::kRows;  ///< items of S~, or of one of its parts
  static constexpr int kValues = kTokens / Values::kRows;
  static constexpr int kKeyItems = 1 + kValues;  ///< items per 64 tokens, K first

  static constexpr int kSlotBytes =
      std::max({int{State::kBytes}, int{Rows::kBytes}, int{Values::kBytes}});
  static constexpr int kSlots = std::min(kStates > 1 ? 5 : 4, (kLeastShared - 4 * D) / kSlotBytes);
  static constexpr int kKeySum = kSlots * kSlotBytes;  ///< offset of z~
  static constexpr int kBytes = kKeySum + 4 * D;
  static_assert(kWarps * Output::kBytes <= kKeySum, "outputs leave through the slots");
  static_assert(kBytes <= shared_limit(Arch::kSm80), "the ring fits into shared memory");
};

/// Work of a thread block. Item 0 is Q. S~_i by rows, then K and V follow.
template <class Config>
struct CausalReadOutTile {
  std::uint32_t lane;
  std::int32_t warp;
  std::uint32_t shared;
  BatchHead pair;
  std::int32_t mixture;  ///< index of S~_i, 2 D E bytes each
  std::int32_t block;    ///< i
  std::int32_t part;     ///< part of the block: reads keys of parts 0 to this one
  std::int32_t column;   ///< first column of E
  std::int32_t first;    ///< first token of the block
  std::int32_t last;     ///< end of the block's tokens
  std::int32_t states;
  std::int32_t items;

  MHLA_DEVICE std::uint32_t slot(std::int32_t n) const {
    return shared + static_cast<std::uint32_t>(n % Config::kSlots) * Config::kSlotBytes;
  }
  MHLA_DEVICE ConsecutiveTokens tokens(std::int32_t offset) const { return {first + offset, last}; }
  /// Item n is K (index 0) or V of part keys(n).part.
  struct Keys {
    std::int32_t part;
    std::int32_t index;
  };
  MHLA_DEVICE Keys keys(std::int32_t n) const {
    const std::uint32_t item = n - 1 - states;
    return {static_cast<std::int32_t>(item / Config::kKeyItems),
            static_cast<std::int32_t>(item % Config::kKeyItems)};
  }
  MHLA_DEVICE bool is_state(std::int32_t n) const { return n >= 1 && n <= states; }
  MHLA_DEVICE bool is_key(std::int32_t n) const { return n > states && keys(n).index == 0; }
};

}  // namespace mhla::cuda
