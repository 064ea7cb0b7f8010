#pragma once

/// \file
/// Parameters, rows and shared memory of quadratic_gradient_sm80.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/gradient_parameters.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Tokens as rows of shared memory: blocks in order, each padded to a multiple of 8 rows.
struct PaddedBlocks {
  static constexpr std::int32_t kMostRows = 256;

  TokenBlocks blocks;

  /// Rows per block.
  MHLA_HOST_DEVICE constexpr std::int32_t rows_of_block() const {
    return (blocks.slots() + 7) / 8 * 8;
  }
  MHLA_HOST_DEVICE constexpr std::int32_t rows() const { return blocks.blocks() * rows_of_block(); }
  /// Returns the block of a row; the last block for rows after it.
  MHLA_HOST_DEVICE constexpr std::int32_t block_of(std::int32_t row) const {
    const std::int32_t block = row / rows_of_block();
    return block < blocks.blocks() ? block : blocks.blocks() - 1;
  }
  /// Returns the token of a row, or -1.
  MHLA_HOST_DEVICE constexpr std::int32_t operator()(std::int32_t row) const {
    if (row >= rows()) return -1;
    const std::int32_t block = row / rows_of_block(), slot = row % rows_of_block();
    return slot < blocks.slots() ? blocks.token(blocks.origin(block), slot) : -1;
  }
  /// Returns true if all rows fit into shared memory.
  static constexpr bool fit(const TokenBlocks& blocks) {
    return std::int64_t{blocks.blocks()} * ((blocks.slots() + std::int64_t{7}) / 8 * 8) <=
           kMostRows;
  }
};

struct QuadraticGradientParameters : GradientParameters {
  ConstTokenTensor out;  ///< [B, Nq, H, D], read if there is a denominator
  PaddedBlocks queries;
  PaddedBlocks keys;
};

/// \tparam D  a width for which kFits is true
template <int D, bool kCrossQuery = false>
struct QuadraticGradientConfig {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kRows = PaddedBlocks::kMostRows;
  static constexpr int kMostBlocks = kRows / 8;

  using Rows = SharedTile<kRows, D>;
  using Output = SharedTile<16, D>;  ///< tile of a warp

  // Layout of shared memory, in bytes. Sums of keys are read before outputs are written.
  static constexpr int kQueries = 0;
  static constexpr int kKeys = kQueries + Rows::kBytes;
  static constexpr int kValues = kKeys + Rows::kBytes;
  static constexpr int kGradients = kValues + Rows::kBytes;  ///< dN
  static constexpr int kOutputs = kGradients + Rows::kBytes;
  static constexpr int kKeySums = kOutputs;                               ///< z [Mk, D]
  static constexpr int kMixedSums = kKeySums + 4 * kMostBlocks * D;       ///< z~ [Mq, D], or
  static constexpr int kQuerySums = kMixedSums;                           ///< s [kRows]
  static constexpr int kMixing = kOutputs + kWarps * Output::kBytes;      ///< m [Mq, kPitch]
  static constexpr int kPitch = kMostBlocks + 1;                          ///< numbers per row of m
  static constexpr int kSums = kMixing + 4 * kMostBlocks * kPitch;        ///< sums of A G
  static constexpr int kWeights = kSums + 4 * kMostBlocks * kMostBlocks;  ///< c [kRows]
  static constexpr int kOwnWeights = kWeights + 4 * kRows;                ///< ds [kRows]
  static constexpr int kQueryTokens = kOwnWeights + (kCrossQuery ? 4 * kRows : 0);
  static constexpr int kKeyTokens = kQueryTokens + 4 * kRows;
  static constexpr int kBytes = kKeyTokens + 4 * kRows;
  /// Devices of sm_90a alone have enough shared memory for some widths, and none for others.
  static constexpr Arch kInstructionSet =
      kBytes <= shared_limit(Arch::kSm80) ? Arch::kSm80 : Arch::kSm90a;
  static constexpr bool kFits = kBytes <= shared_limit(kInstructionSet);
  static_assert(kMixedSums + 4 * kMostBlocks * D <= kMixing, "sums fit where outputs leave");
};

}  // namespace mhla::cuda
