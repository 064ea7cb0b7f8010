#pragma once

/// \file
/// Products of rows in registers with a vector of floats in shared memory: q . z, in float.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

/// What belongs to rows lane / 4 and lane / 4 + 8 of a fragment.
struct RowPair {
  float x;
  float x_8;
};

/// The products of both rows with the vector at a shared address, a multiple of 8. All threads of
/// the warp call together; the four that share rows get the same numbers.
template <class T, int kColumns>
MHLA_DEVICE RowPair row_products(const Fragment<kColumns>& rows, std::uint32_t vector,
                                 std::uint32_t lane) {
  RowPair sum{0, 0};
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kColumns / 8; ++j) {
    const std::uint32_t at = vector + 32 * j + lane % 4 * 8;
    const ptx::Words2 two = ptx::load_shared_2(at);
    const float y = as_float(two.x[0]), z = as_float(two.x[1]);
    sum.x += ptx::low<T>(rows.x[2 * j]) * y + ptx::high<T>(rows.x[2 * j]) * z;
    sum.x_8 += ptx::low<T>(rows.x[2 * j + 1]) * y + ptx::high<T>(rows.x[2 * j + 1]) * z;
  }
  MHLA_CUDA_UNROLL
  for (std::uint32_t mask = 1; mask < 4; mask *= 2) {
    sum.x += ptx::shuffle_xor(sum.x, mask);
    sum.x_8 += ptx::shuffle_xor(sum.x_8, mask);
  }
  return sum;
}

}  // namespace mhla::cuda
