#pragma once

/// \file
/// Sizes and shared memory of read_out_sm80.cuh.

#include <algorithm>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/tile/factors.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// \tparam kLimit  bytes of shared memory per thread block
/// \tparam T       element type of the tensors; those of 16 bits have the same sizes
template <int D, int E, Precision P, int kLimit, class T = bfloat16>
struct ReadOutConfig {
  static constexpr int kSlots = 256;  ///< slots per thread block
  static constexpr int kParts = P == Precision::kPair ? 2 : 1;
  static constexpr int kListBytes = 4 * kSlots;
  /// Columns of a product: fewer if a warp has more features in registers, such as parts of floats.
  static constexpr int kOutputColumns =
      Width<E>::kPart / Width<D>::kParts / (kIsFloat<T> && D + E > 144 ? 4 : 1);
  using Strip = FactorTile<T, 16, D>;             ///< [slot][d]
  using Output = SharedTile<16, kOutputColumns>;  ///< takes the place of a strip
  static constexpr int kStripBytes = std::max(int{Strip::kBytes}, int{Output::kBytes});

  /// Bytes with so many columns of S~, warps and stages. The last list is for parts of S~.
  static constexpr int bytes(int columns, int warps, int stages) {
    return kParts * D * 2 * columns + warps * stages * kStripBytes +
           (columns < E ? 3 : 2) * kListBytes;
  }
  /// Columns of S~ in shared memory at a time: those of a product if all leave no space for tokens.
  static constexpr int kColumns = bytes(E, 4, 1) <= kLimit ? E : kOutputColumns;
  using Mixture = SharedTile<D, kColumns>;  ///< [d][e]

  static constexpr int kMixtureBytes = kParts * Mixture::kBytes;
  static constexpr int kWarps = kMixtureBytes > 32768 && bytes(kColumns, 8, 1) <= kLimit ? 8 : 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kMostStages = Width<D>::kPanelCount == 1 ? 3 : 2;
  static constexpr int kStages =
      std::min(kMostStages, (kLimit - bytes(kColumns, kWarps, 0)) / (kWarps * kStripBytes));

  // Layout of shared memory, in bytes.
  static constexpr int kStrips = kMixtureBytes;
  static constexpr int kTokens = kStrips + kWarps * kStages * kStripBytes;
  static constexpr int kDenominators = kTokens + kListBytes;   ///< z~, or denominators of slots
  static constexpr int kSquares = kDenominators + kListBytes;  ///< sums of rows, with half of S~
  static constexpr int kBytes = kSquares + (kColumns < E ? kListBytes : 0);
  static_assert(D <= kSlots, "z~ fits where denominators of slots do");
  static_assert(kBytes <= kLimit, "S~ and a stage fit into shared memory");
};

/// Work of a thread.
template <class Config>
struct ReadOutTile {
  using Mixture = typename Config::Mixture;
  using Strip = typename Config::Strip;

  std::uint32_t thread;
  std::uint32_t lane;
  std::int32_t warp;
  std::uint32_t shared;
  BatchHead pair;
  std::int64_t scores;  ///< index of the pair's first score
  std::int64_t item;    ///< pair * M + i
  std::int32_t block;   ///< i
  std::int32_t slot;    ///< first slot
  std::int32_t strips;  ///< number of strips of 16 slots

  MHLA_DEVICE Mixture mixture(int part) const { return {shared + part * Mixture::kBytes}; }
  /// Stage of a strip: warp, warp + kWarps, ...
  MHLA_DEVICE Strip stage(std::int32_t strip) const {
    const std::int32_t index = warp * Config::kStages + strip / Config::kWarps % Config::kStages;
    return {shared + Config::kStrips + index * Config::kStripBytes};
  }
  MHLA_DEVICE ListedTokens tokens(std::int32_t strip) const {
    return {shared + Config::kTokens, 16 * strip};
  }
  /// Tokens of the thread's rows of the strip.
  MHLA_DEVICE TokenPair row_tokens(std::int32_t strip) const {
    const auto row = static_cast<std::int32_t>(lane / 4);
    return {tokens(strip)(row), tokens(strip)(row + 8)};
  }
  MHLA_DEVICE std::uint32_t denominators() const { return shared + Config::kDenominators; }
  /// Shared address of the sum of squares of the thread's first row of the strip.
  MHLA_DEVICE std::uint32_t squares(std::int32_t strip) const {
    return shared + Config::kSquares + 64 * strip + lane / 4 * 4;
  }
};

/// A pass over the strips of a block, with columns of S~ from `column` on in shared memory.
struct ReadOutPass {
  int column;
  bool sums;  ///< only sums the squares of outputs, for the norm
};

}  // namespace mhla::cuda
