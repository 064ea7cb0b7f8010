#pragma once

/// \file
/// Stage 1 on the device: phi of pairs of 16-bit numbers, in float and rounded once.
///
///     identity        x                            max(x, -inf) + 0
///     relu            max(x, 0) + eps
///     elu_plus_one    x + 1 for x > 0, otherwise e^x
///
/// One formula serves the first two. Which of the formulas it is a kernel asks once for all numbers
/// of a tile: the compiler does not move the question out of the loop.

#include <cstdint>
#include <limits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"

namespace mhla::cuda {

/// e^x = 2^(x log2(e)) up to 0.
struct EluPlusOne {
  MHLA_DEVICE float operator()(float x) const {
    return x > 0 ? x + 1 : ptx::ex2_approx(x * 1.442695041f);
  }
};

struct Threshold {
  float floor;
  float eps;
  MHLA_DEVICE float operator()(float x) const { return ptx::max_nan(x, floor) + eps; }
};

struct FeatureMap {
  float floor;
  float eps;
  bool exponential;

  static constexpr FeatureMap identity() {
    return {-std::numeric_limits<float>::infinity(), 0, false};
  }
  static constexpr FeatureMap relu(float eps = 1e-6f) { return {0, eps, false}; }
  static constexpr FeatureMap elu_plus_one() { return {0, 0, true}; }

  /// Calls work(formula).
  template <class Work>
  MHLA_DEVICE void with_formula(const Work& work) const {
    if (exponential) {
      work(EluPlusOne{});
    } else {
      work(Threshold{floor, eps});
    }
  }
};

/// phi of both numbers of each pair, NaN of NaN.
template <class T, class Formula, int kCount>
MHLA_DEVICE void apply(Formula phi, std::uint32_t (&pairs)[kCount]) {
  MHLA_CUDA_UNROLL
  for (std::uint32_t& x : pairs) x = ptx::pack<T>(phi(ptx::low<T>(x)), phi(ptx::high<T>(x)));
}

template <class T, int kCount>
MHLA_DEVICE void apply(const FeatureMap& map, std::uint32_t (&pairs)[kCount]) {
  map.with_formula([&](auto phi) { apply<T>(phi, pairs); });
}

}  // namespace mhla::cuda
