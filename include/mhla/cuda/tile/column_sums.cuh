#pragma once

/// \file
/// Column sums of rows that a thread block reads in pieces of 16 bytes.
///
/// Thread i holds eight sums of piece i % kPieces, over every kRows-th row from row i / kPieces on.
/// Threads from kRows kPieces on hold no sums. The order of the sums is fixed, so that bits are the
/// same in every run.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda {

template <int kThreads, int kWidth>
struct ColumnSums {
  static constexpr int kPieces = kWidth / 8;
  static constexpr int kRows = kThreads / kPieces;
  static constexpr int kSharedBytes = 4 * kRows * kWidth;

  /// Writes the sums over all threads to `to` [kWidth]. All threads of the block call it, once. It
  /// overwrites shared memory from its beginning.
  static MHLA_DEVICE void write(const float (&sums)[8], float* to) {
    const std::uint32_t thread = ptx::tid_x();
    const std::uint32_t row = thread / kPieces, piece = thread % kPieces;
    const std::uint32_t shared = ptx::shared_begin();
    if (row < kRows) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t i = 0; i < 8; ++i) {
        ptx::st_shared_f32(shared + 4 * (row * kWidth + i * kPieces + piece), sums[i]);
      }
    }
    ptx::bar_sync();
    MHLA_CUDA_LOOP
    for (std::uint32_t column = thread; column < kWidth; column += kThreads) {
      float sum = 0;
      MHLA_CUDA_UNROLL
      for (std::uint32_t r = 0; r < kRows; ++r) {
        sum += ptx::ld_shared_f32(shared + 4 * (r * kWidth + column % 8 * kPieces + column / 8));
      }
      ptx::st_global_f32(to + column, sum);
    }
  }
};

}  // namespace mhla::cuda
