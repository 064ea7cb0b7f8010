#pragma once

/// \file
/// Operations of one thread on pieces of 16 bytes (eight 16-bit numbers) and on sums of floats.
/// They serve where rows are too few for matrix products.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
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

/// Returns the word with the bits of a float.
MHLA_DEVICE std::uint32_t as_word(float x) { return __builtin_bit_cast(std::uint32_t, x); }

/// Loads four floats as a group of words.
MHLA_DEVICE ptx::Words4 four_floats(const float* x) {
  return {{as_word(x[0]), as_word(x[1]), as_word(x[2]), as_word(x[3])}};
}

/// Bytes of eight numbers of T.
template <class T>
inline constexpr int kPieceBytes = std::is_same_v<T, float> ? 32 : 16;

/// Writes eight floats.
MHLA_DEVICE void store_floats(const float (&x)[8], unsigned char* to) {
  ptx::st_global_v4(to, four_floats(x));
  ptx::st_global_v4(to + 16, four_floats(x + 4));
}

/// Eight numbers of T in registers.
template <class T>
struct Eight {
  ptx::Words4 words;

  /// Loads numbers that the grid does not write.
  static MHLA_DEVICE Eight load(const unsigned char* from) { return {ptx::ld_global_nc_v4(from)}; }
  MHLA_DEVICE void apply_map(const FeatureMap& map) { apply<T>(map, words.x); }
  MHLA_DEVICE void to_floats(float (&x)[8]) const {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = ptx::low<T>(words.x[i]);
      x[2 * i + 1] = ptx::high<T>(words.x[i]);
    }
  }
};
template <>
struct Eight<float> {
  ptx::Words4 words[2];

  static MHLA_DEVICE Eight load(const unsigned char* from) {
    return {{ptx::ld_global_nc_v4(from), ptx::ld_global_nc_v4(from + 16)}};
  }
  MHLA_DEVICE void apply_map(const FeatureMap& map) {
    map.with_float_formula([&](auto phi) { apply_to_each(phi); });
  }
  template <ElementwiseMap M>
  MHLA_DEVICE void apply_map(const M& map) {
    apply_to_each([&map](float x) { return static_cast<float>(map.function(x)); });
  }
  MHLA_DEVICE void to_floats(float (&x)[8]) const {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = as_float(words[i / 4].x[i % 4]);
  }

 private:
  template <class Formula>
  MHLA_DEVICE void apply_to_each(const Formula& phi) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 8; ++i) {
      words[i / 4].x[i % 4] = as_word(phi(as_float(words[i / 4].x[i % 4])));
    }
  }
};

/// Applies phi to every number, rounded.
template <class T, class Map>
MHLA_DEVICE ptx::Words4 apply(const Map& map, ptx::Words4 x) {
  apply<T>(map, x.x);
  return x;
}

}  // namespace mhla::cuda
