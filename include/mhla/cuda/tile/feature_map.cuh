#pragma once

/// \file
/// Stage 1 on the device: phi of pairs of 16-bit numbers, in float and rounded once.
///
///     identity        x                            max(x, -inf) + 0
///     relu            max(x, 0) + eps
///     elu_plus_one    x + 1 for x > 0, otherwise e^x
///
/// One formula serves the first two, so that kernels have one body for all maps.

#include <cstdint>
#include <limits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"

namespace mhla::cuda {

struct FeatureMap {
  float floor;
  float eps;
  bool exponential;

  static constexpr FeatureMap identity() {
    return {-std::numeric_limits<float>::infinity(), 0, false};
  }
  static constexpr FeatureMap relu(float eps = 1e-6f) { return {0, eps, false}; }
  static constexpr FeatureMap elu_plus_one() { return {0, 0, true}; }

  /// phi of a number, NaN of NaN.
  MHLA_DEVICE float operator()(float x) const {
    if (exponential) return x > 0 ? x + 1 : ptx::exp2(x * 1.442695041f);  // e^x = 2^(x log2(e))
    return ptx::max_or_nan(x, floor) + eps;
  }

  /// phi of both numbers of a pair.
  template <class T>
  MHLA_DEVICE std::uint32_t of_pair(std::uint32_t pair) const {
    return ptx::pack<T>((*this)(ptx::low<T>(pair)), (*this)(ptx::high<T>(pair)));
  }
};

}  // namespace mhla::cuda
