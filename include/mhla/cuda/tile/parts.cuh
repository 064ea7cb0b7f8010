#pragma once

/// \file
/// Floats as sums of two 16-bit numbers: x = high + low, high = T(x), low = T(x - high).
///
/// high + low is within 2^-17 |x| of x for bfloat16 and 2^-23 |x| + 2^-25 for half: |x - high| is
/// at most half the distance of numbers of T around x, and low is rounded from there on. An x that
/// overflows T, or is not finite, has a low that is not finite either.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"

namespace mhla::cuda {

/// Two numbers, in pairs of both parts.
struct Parts {
  std::uint32_t high;
  std::uint32_t low;
};

template <class T>
MHLA_DEVICE Parts parts_of(float x, float y) {
  const std::uint32_t high = ptx::pack<T>(x, y);
  return {high, ptx::pack<T>(x - ptx::low<T>(high), y - ptx::high<T>(high))};
}

/// Multiplies sums of a product.
template <int kTiles>
MHLA_DEVICE void scale_sums(float (&sums)[kTiles][4], float by) {
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    MHLA_CUDA_UNROLL
    for (float& x : sums[j]) x *= by;
  }
}

/// Replaces sums of a product (product.cuh) by what rounding them to T leaves.
template <class T, int kTiles>
MHLA_DEVICE void keep_rest(float (&sums)[kTiles][4]) {
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const std::uint32_t high = ptx::pack<T>(sums[j][i], sums[j][i + 1]);
      sums[j][i] -= ptx::low<T>(high);
      sums[j][i + 1] -= ptx::high<T>(high);
    }
  }
}

}  // namespace mhla::cuda
