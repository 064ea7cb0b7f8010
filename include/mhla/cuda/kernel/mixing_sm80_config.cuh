#pragma once

/// \file
/// Sizes and shared memory of mixing_sm80.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/tile/layout.cuh"

namespace mhla::cuda {

template <int D, int E, Precision P>
struct MixingConfig {
  static_assert(has_kernels(D, E));

  static constexpr int kRows = 64;
  static constexpr int kColumns = D * E % 128 == 0 ? 128 : 64;
  static constexpr int kColumnTiles = D * E / kColumns;
  static_assert(kColumnTiles * kColumns == D * E, "no tile of columns is ragged");
  static constexpr int kThreads = 128;
  static constexpr int kRowTiles = kRows / 16;
  static constexpr int kTiles = kColumns / 4 / 8;  // tiles of 8 columns per warp

  static constexpr int kStrip = 32;
  static constexpr int kStages = 3;
  static constexpr int kParts = P == Precision::kPair ? 2 : 1;
  using Summaries = SharedTile<kStrip, kColumns>;  // [b][column]
  using Mixture = SharedTile<kRows, kColumns>;     // [i][column]
  using Factors = SharedTile<kRows, 2 * kStrip>;   // [i][b]: m_high, then m_low
  static constexpr int kStageBytes = kParts * Summaries::kBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * Factors::kBytes;
  static_assert(Mixture::kBytes <= kStages * kStageBytes, "the result leaves through the ring");
  static_assert(kSharedBytes <= shared_limit(Arch::kSm80), "the ring fits into shared memory");
};

}  // namespace mhla::cuda
