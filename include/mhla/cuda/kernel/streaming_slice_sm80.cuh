#pragma once

/// \file
/// What one thread block of a decoding step has, a slice of kColumns columns of values of a pair,
/// and what happens to it at the ends of blocks: the first token of a block makes S~ and z~ of the
/// blocks before it, the last one makes S and z of its own. Sums are floats on CUDA cores, in the
/// order of blocks and of tokens.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P>
struct StreamingSlice {
  using Params = StreamingStepParameters;
  static constexpr int kThreads = 128;
  static constexpr int kColumns = streaming_slice(E);
  static constexpr int kSlices = E / kColumns;
  static constexpr bool kPair = P == Precision::kPair;
  static constexpr int kPieces = kColumns / 8;        ///< of a row of the slice
  static constexpr int kKeyPieces = D / 8;            ///< of a key
  static constexpr int kGroups = kThreads / kPieces;  ///< of threads, all columns in each
  static constexpr int kRowPairs = (D / 2 + kGroups - 1) / kGroups;  ///< of S~, to a thread
  static constexpr int kClosing = 16;  ///< keys in shared memory at once when a block is closed
  static constexpr std::int64_t kMatrixBytes = std::int64_t{2} * D * E;

  /// Where a thread stands.
  struct WorkTile {
    std::int64_t pair;
    std::int32_t slice;
    std::uint32_t shared;
    std::uint32_t thread;
    std::uint32_t piece;  ///< of the slice
    std::uint32_t group;  ///< kGroups for threads left over

    MHLA_DEVICE std::uint32_t row_pair(int r) const { return group + r * kGroups; }
    MHLA_DEVICE bool has(int r) const { return group < kGroups && row_pair(r) < D / 2; }
    /// Bytes from the begin of a [D, E] matrix to the thread's piece of a row.
    MHLA_DEVICE std::int64_t offset(std::uint32_t row) const {
      return (static_cast<std::int64_t>(row) * E + slice * kColumns) * 2 + piece * 16;
    }
  };

  /// Where a stream stands: the token is number `slot` of block `block`.
  struct Position {
    std::int64_t position;
    std::int32_t block;
    std::int32_t slot;
  };

  /// A thread's part of S~.
  struct Rows {
    ptx::Words4 high[kRowPairs][2];
    ptx::Words4 low[kPair ? kRowPairs : 1][2];
  };

  static MHLA_DEVICE WorkTile work_tile();
  /// S~ from memory.
  static MHLA_DEVICE Rows load_mixture(const Params& p, const WorkTile& at);
  /// Makes S~ of a block that begins: the thread's part, and in memory.
  static MHLA_DEVICE Rows mix(const Params& p, const WorkTile& at, std::int32_t block);
  /// Makes z~ of a block that begins: number at.thread of it.
  static MHLA_DEVICE float mix_key_sum(const Params& p, const WorkTile& at, std::int32_t block);
  /// Makes S and z of the block whose last token this is. phi(k) of the token is at shared address
  /// `own_key`; kClosing keys get room at `keys`.
  static MHLA_DEVICE void close(const Params& p, const WorkTile& at, Position now,
                                std::uint32_t own_key, ptx::Words4 own_value, std::uint32_t keys);
};

// -------------------------------------------------------------------------------------------------

template <class T, int D, int E, Precision P>
MHLA_DEVICE auto StreamingSlice<T, D, E, P>::work_tile() -> WorkTile {
  const std::uint32_t x = ptx::ctaid_x(), thread = ptx::tid_x();
  return {x / kSlices,         static_cast<std::int32_t>(x % kSlices),
          ptx::shared_begin(), thread,
          thread % kPieces,    thread / kPieces};
}

template <class T, int D, int E, Precision P>
MHLA_DEVICE auto StreamingSlice<T, D, E, P>::load_mixture(const Params& p, const WorkTile& at)
    -> Rows {
  Rows rows;
  MHLA_CUDA_UNROLL
  for (int r = 0; r < kRowPairs; ++r) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      rows.high[r][i] = {};
      if constexpr (kPair) rows.low[r][i] = {};
      if (!at.has(r)) continue;
      const std::int64_t offset = at.pair * kMatrixBytes + at.offset(2 * at.row_pair(r) + i);
      rows.high[r][i] = ptx::ld_global_v4(p.state.mixture.high + offset);
      if constexpr (kPair) rows.low[r][i] = ptx::ld_global_v4(p.state.mixture.low + offset);
    }
  }
  return rows;
}

template <class T, int D, int E, Precision P>
MHLA_DEVICE auto StreamingSlice<T, D, E, P>::mix(const Params& p, const WorkTile& at,
                                                 std::int32_t block) -> Rows {
  constexpr int kTogether = kPair ? 2 : 4;  // blocks whose rows are under way at once
  const std::int64_t all = at.pair * p.blocks.blocks() * kMatrixBytes;
  Rows rows;
  MHLA_CUDA_UNROLL
  for (int r = 0; r < kRowPairs; ++r) {
    float sums[2][8] = {};
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; at.has(r) && first < block; first += kTogether) {
      ptx::Words4 high[kTogether][2] = {}, low[kTogether][2] = {};
      MHLA_CUDA_UNROLL
      for (int b = 0; b < kTogether; ++b) {
        MHLA_CUDA_UNROLL
        for (int i = 0; i < 2; ++i) {
          if (first + b >= block) continue;
          const std::int64_t offset =
              all + (first + b) * kMatrixBytes + at.offset(2 * at.row_pair(r) + i);
          high[b][i] = ptx::ld_global_v4(p.state.summaries.high + offset);
          if constexpr (kPair) low[b][i] = ptx::ld_global_v4(p.state.summaries.low + offset);
        }
      }
      MHLA_CUDA_UNROLL
      for (int b = 0; b < kTogether; ++b) {
        if (first + b >= block) break;
        const float m = ptx::ld_global_nc_f32(p.mixing.row(block) + first + b);
        MHLA_CUDA_UNROLL
        for (int i = 0; i < 2; ++i) {
          if constexpr (kPair) add_scaled<T>(sums[i], m, low[b][i]);
          add_scaled<T>(sums[i], m, high[b][i]);
        }
      }
    }
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      rows.high[r][i] = rounded<T>(sums[i]);
      if constexpr (kPair) rows.low[r][i] = rounded_rest<T>(sums[i], rows.high[r][i]);
      if (!at.has(r)) continue;
      const std::int64_t offset = at.pair * kMatrixBytes + at.offset(2 * at.row_pair(r) + i);
      ptx::st_global_v4(p.state.mixture.high + offset, rows.high[r][i]);
      if constexpr (kPair) ptx::st_global_v4(p.state.mixture.low + offset, rows.low[r][i]);
    }
  }
  return rows;
}

template <class T, int D, int E, Precision P>
MHLA_DEVICE float StreamingSlice<T, D, E, P>::mix_key_sum(const Params& p, const WorkTile& at,
                                                          std::int32_t block) {
  constexpr int kTogether = 4;
  const float* const z = p.state.summaries.key_sum + at.pair * p.blocks.blocks() * D + at.thread;
  float sum = 0;
  MHLA_CUDA_LOOP
  for (std::int32_t first = 0; first < block; first += kTogether) {
    float numbers[kTogether];
    MHLA_CUDA_UNROLL
    for (int b = 0; b < kTogether; ++b) {
      numbers[b] = first + b < block ? ptx::ld_global_f32(z + (first + b) * D) : 0.0f;
    }
    MHLA_CUDA_UNROLL
    for (int b = 0; b < kTogether; ++b) {
      if (first + b >= block) break;
      sum += ptx::ld_global_nc_f32(p.mixing.row(block) + first + b) * numbers[b];
    }
  }
  return sum;
}

template <class T, int D, int E, Precision P>
MHLA_DEVICE void StreamingSlice<T, D, E, P>::close(const Params& p, const WorkTile& at,
                                                   Position now, std::uint32_t own_key,
                                                   ptx::Words4 own_value, std::uint32_t keys) {
  const std::int64_t rows = at.pair * p.blocks.slots();
  const std::int64_t block = at.pair * p.blocks.blocks() + now.block;
  float sums[kRowPairs][2][8] = {};
  float key_sum = 0;
  MHLA_CUDA_LOOP
  for (std::int32_t first = 0; first <= now.slot; first += kClosing) {
    ptx::bar_sync();  // the keys before have been read
    for (std::uint32_t i = at.thread; i < kClosing * kKeyPieces; i += kThreads) {
      const auto j = first + static_cast<std::int32_t>(i / kKeyPieces);
      const std::uint32_t piece = i % kKeyPieces;
      if (j > now.slot) break;
      ptx::st_shared_v4(keys + i * 16,
                        j < now.slot
                            ? ptx::ld_global_v4(p.state.keys + (rows + j) * (D * 2) + piece * 16)
                            : ptx::ld_shared_v4(own_key + piece * 16));
    }
    ptx::bar_sync();
    MHLA_CUDA_LOOP
    for (std::int32_t j = first; j < first + kClosing && j <= now.slot; ++j) {
      const std::uint32_t key = keys + (j - first) * (D * 2);
      const ptx::Words4 value = j < now.slot
                                    ? ptx::ld_global_v4(p.state.values + rows * (E * 2) +
                                                        at.offset(static_cast<std::uint32_t>(j)))
                                    : own_value;
      MHLA_CUDA_UNROLL
      for (int r = 0; r < kRowPairs; ++r) {
        const std::uint32_t pair = at.has(r) ? at.row_pair(r) : 0;
        const std::uint32_t k = ptx::ld_shared(key + pair * 4);
        add_scaled<T>(sums[r][0], ptx::low<T>(k), value);
        add_scaled<T>(sums[r][1], ptx::high<T>(k), value);
      }
      if (at.thread < D) {
        const std::uint32_t k = ptx::ld_shared(key + at.thread / 2 * 4);
        key_sum += at.thread % 2 == 0 ? ptx::low<T>(k) : ptx::high<T>(k);
      }
    }
  }
  MHLA_CUDA_UNROLL
  for (int r = 0; r < kRowPairs; ++r) {
    if (!at.has(r)) break;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::int64_t offset = block * kMatrixBytes + at.offset(2 * at.row_pair(r) + i);
      MHLA_CUDA_UNROLL
      for (float& x : sums[r][i]) x *= p.state.summaries.scale;
      const ptx::Words4 high = rounded<T>(sums[r][i]);
      ptx::st_global_v4(p.state.summaries.high + offset, high);
      if constexpr (kPair) {
        ptx::st_global_v4(p.state.summaries.low + offset, rounded_rest<T>(sums[r][i], high));
      }
    }
  }
  if (at.slice == 0 && at.thread < D) {
    ptx::st_global_f32(p.state.summaries.key_sum + block * D + at.thread, key_sum);
  }
}

}  // namespace mhla::cuda
