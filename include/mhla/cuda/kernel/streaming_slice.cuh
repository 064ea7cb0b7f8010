#pragma once

/// \file
/// What one thread block of a stream's kernels has: kColumns columns of values of a pair; and what
/// a thread has of it.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda {

/// Where a stream stands: the next token is number `slot` of block `block`; at the end of all, of
/// the block behind the last one.
struct StreamPosition {
  std::int32_t block;
  std::int32_t slot;
};

template <int D, int E>
struct StreamingSlice {
  static constexpr int kThreads = 128;
  static constexpr int kColumns = streaming_slice(E);
  static constexpr int kSlices = E / kColumns;
  static constexpr int kPieces = kColumns / 8;        ///< of 16 bytes in a row
  static constexpr int kGroups = kThreads / kPieces;  ///< of threads, all columns in each
  static constexpr int kRowPairs = (D / 2 + kGroups - 1) / kGroups;  ///< of S~, to a thread
  static constexpr std::int64_t kMatrixBytes = std::int64_t{2} * D * E;

  std::int64_t pair;  ///< of the state
  std::int32_t slice;
  std::uint32_t thread;
  std::uint32_t piece;
  std::uint32_t group;  ///< kGroups for threads left over

  static MHLA_DEVICE StreamingSlice of(std::int64_t pair, std::int32_t slice) {
    const std::uint32_t thread = ptx::tid_x();
    return {pair, slice, thread, thread % kPieces, thread / kPieces};
  }

  MHLA_DEVICE std::uint32_t row_pair(int r) const { return group + r * kGroups; }
  MHLA_DEVICE bool has(int r) const { return group < kGroups && row_pair(r) < D / 2; }
  /// Bytes from the begin of an [n, E] matrix to a piece of the slice.
  MHLA_DEVICE std::int64_t offset(std::uint32_t row, std::uint32_t own) const {
    return (static_cast<std::int64_t>(row) * E + slice * kColumns) * 2 + own * 16;
  }
  MHLA_DEVICE std::int64_t offset(std::uint32_t row) const { return offset(row, piece); }
};

}  // namespace mhla::cuda
