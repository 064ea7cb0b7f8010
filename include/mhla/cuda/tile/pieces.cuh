#pragma once

/// \file
/// Operations of one thread on pieces of 16 bytes (eight 16-bit numbers) and on sums of floats.
/// They serve where rows are too few for matrix products.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/feature_map.cuh"

namespace mhla::cuda {

/// sums += factor * x
template <class T>
MHLA_DEVICE void add_scaled(float (&sums)[8], float factor, ptx::Words4 x) {
  MHLA_CUDA_UNROLL
  for (int i = 0; i < 4; ++i) {
    sums[2 * i] += factor * ptx::low<T>(x.x[i]);
    sums[2 * i + 1] += factor * ptx::high<T>(x.x[i]);
  }
}

/// sum + x . y
template <class T>
MHLA_DEVICE float add_product(float sum, ptx::Words4 x, ptx::Words4 y) {
  MHLA_CUDA_UNROLL
  for (int i = 0; i < 4; ++i) {
    sum += ptx::low<T>(x.x[i]) * ptx::low<T>(y.x[i]);
    sum += ptx::high<T>(x.x[i]) * ptx::high<T>(y.x[i]);
  }
  return sum;
}

/// T(x)
template <class T>
MHLA_DEVICE ptx::Words4 rounded(const float (&x)[8]) {
  return {{ptx::pack<T>(x[0], x[1]), ptx::pack<T>(x[2], x[3]), ptx::pack<T>(x[4], x[5]),
           ptx::pack<T>(x[6], x[7])}};
}

/// T(x - high)
template <class T>
MHLA_DEVICE ptx::Words4 rounded_rest(const float (&x)[8], ptx::Words4 high) {
  ptx::Words4 rest;
  MHLA_CUDA_UNROLL
  for (int i = 0; i < 4; ++i) {
    rest.x[i] =
        ptx::pack<T>(x[2 * i] - ptx::low<T>(high.x[i]), x[2 * i + 1] - ptx::high<T>(high.x[i]));
  }
  return rest;
}

/// Returns the float with the bits of a word.
MHLA_DEVICE float as_float(std::uint32_t word) { return __builtin_bit_cast(float, word); }

/// Loads four floats as a group of words.
MHLA_DEVICE ptx::Words4 four_floats(const float* x) {
  return {{__builtin_bit_cast(std::uint32_t, x[0]), __builtin_bit_cast(std::uint32_t, x[1]),
           __builtin_bit_cast(std::uint32_t, x[2]), __builtin_bit_cast(std::uint32_t, x[3])}};
}

/// Applies phi to every number, rounded.
template <class T>
MHLA_DEVICE ptx::Words4 apply(const FeatureMap& map, ptx::Words4 x) {
  apply<T>(map, x.x);
  return x;
}

}  // namespace mhla::cuda
