#pragma once

/// \file
/// A slice of a stream: kColumns columns of values of a pair, which one thread block processes.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda {

/// Position of a stream: the next token is in slot `slot` of block `block`. After the last token
/// `block` is M.
struct StreamPosition {
  std::int32_t block;
  std::int32_t slot;
};

template <int D, int E>
struct StreamingSlice {
  static constexpr int kThreads = 128;
  static constexpr int kColumns = streaming_slice(E);
  static constexpr int kSlices = E / kColumns;
  static constexpr int kPieces = kColumns / 8;        ///< pieces of 16 bytes per row
  static constexpr int kGroups = kThreads / kPieces;  ///< groups of threads, each with all columns
  static constexpr int kRowPairs = (D / 2 + kGroups - 1) / kGroups;  ///< row pairs of S~ per thread
  static constexpr std::int64_t kMatrixBytes = std::int64_t{2} * D * E;

  std::int64_t pair;  ///< pair of the state
  std::int32_t head;
  std::int32_t slice;
  std::uint32_t thread;
  std::uint32_t piece;
  std::uint32_t group;  ///< kGroups for excess threads

  /// \param sequence  sequence of the state
  static MHLA_DEVICE StreamingSlice of(std::int64_t sequence, std::int32_t heads, std::int32_t head,
                                       std::int32_t slice) {
    const std::uint32_t thread = ptx::tid_x();
    return {sequence * heads + head, head, slice, thread, thread % kPieces, thread / kPieces};
  }

  MHLA_DEVICE std::uint32_t row_pair(int r) const { return group + r * kGroups; }
  MHLA_DEVICE bool has(int r) const { return group < kGroups && row_pair(r) < D / 2; }
  /// Offset in bytes of a piece of the slice in an [n, E] matrix.
  MHLA_DEVICE std::int64_t offset(std::uint32_t row, std::uint32_t column_piece) const {
    return (static_cast<std::int64_t>(row) * E + slice * kColumns) * 2 + column_piece * 16;
  }
  MHLA_DEVICE std::int64_t offset(std::uint32_t row) const { return offset(row, piece); }
};

}  // namespace mhla::cuda
