#pragma once

/// \file
/// Sums of the elements of rows that a warp holds as Fragment (fragment.cuh), in float. A thread
/// adds what it has of its two rows, in any number of fragments, before the four threads that share
/// rows add theirs.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/row_products.cuh"

namespace mhla::cuda {

/// Adds the thread's own elements of both rows.
template <class T, int kColumns>
MHLA_DEVICE void add_elements(RowPair& sums, const Fragment<kColumns>& rows) {
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kColumns / 8; ++j) {
    sums.x += ptx::low<T>(rows.x[2 * j]) + ptx::high<T>(rows.x[2 * j]);
    sums.x_8 += ptx::low<T>(rows.x[2 * j + 1]) + ptx::high<T>(rows.x[2 * j + 1]);
  }
}

/// The sums of the four threads of each row, in all of them. All threads of the warp call together.
MHLA_DEVICE RowPair over_row(RowPair sums) {
  MHLA_CUDA_UNROLL
  for (std::uint32_t mask = 1; mask < 4; mask *= 2) {
    sums.x += ptx::shuffle_xor(sums.x, mask);
    sums.x_8 += ptx::shuffle_xor(sums.x_8, mask);
  }
  return sums;
}

}  // namespace mhla::cuda
