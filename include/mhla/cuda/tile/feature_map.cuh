#pragma once

/// \file
/// Stage 1 on the device: phi of pairs of 16-bit numbers, rounded once, and phi of floats.
///
///     identity        x                            max(x, -inf) + 0
///     relu            max(x, 0) + eps
///     elu_plus_one    x + 1 for x > 0, otherwise e^x, in float
///
/// identity and relu share a formula, two instructions per pair, with eps rounded to the type of
/// the tensors. A kernel chooses the formula once for all numbers of a tile, because the compiler
/// does not move that branch out of the loop.
///
/// A map of one's own (ElementwiseMap) is a type, so each has kernels of its own. These are few:
/// features_sm80, selected_rows_sm80 and streaming_step_sm80.

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"

namespace mhla::cuda {

/// elu(x) + 1: x + 1 above 0, otherwise e^x = 2^(x log2(e)).
struct EluPlusOne {
  MHLA_DEVICE float operator()(float x) const {
    return x > 0 ? x + 1 : ptx::ex2_approx(x * 1.442695041f);
  }
  template <class T>
  MHLA_DEVICE std::uint32_t of_pair(std::uint32_t x) const {
    return ptx::pack<T>((*this)(ptx::low<T>(x)), (*this)(ptx::high<T>(x)));
  }
};

/// A number twice, as a pair of each type. Instructions read such pairs from a kernel's parameters.
struct BothPairs {
  std::uint32_t of_bfloat16;
  std::uint32_t of_half;

  /// Rounds x, which is not NaN, to both types, ties to even.
  static constexpr BothPairs of(float x) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    const std::uint32_t top = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    std::uint32_t narrow = 0x7C00;  // infinity
    if (size < 0x38800000) {        // below 2^-14: steps of 2^-24
      const float steps = (x < 0 ? -x : x) * 0x1p24f;
      narrow = static_cast<std::uint32_t>(steps);
      const float rest = steps - static_cast<float>(narrow);
      narrow += rest > 0.5f || (rest == 0.5f && narrow % 2 != 0) ? 1 : 0;
    } else if (size < 0x477FF000) {  // 65520
      narrow = ((size + 0xFFF + (size >> 13 & 1)) >> 13) - (112u << 10);
    }
    return {top * 0x10001, (narrow | sign) * 0x10001};
  }
  template <class T>
  MHLA_HOST_DEVICE constexpr std::uint32_t as() const {
    return std::is_same_v<T, half> ? of_half : of_bfloat16;
  }
  bool operator==(const BothPairs&) const = default;
};

struct Threshold {
  BothPairs floor;
  BothPairs eps;
  template <class T>
  MHLA_DEVICE std::uint32_t of_pair(std::uint32_t x) const {
    return ptx::add_x2<T>(ptx::max_nan_x2<T>(x, floor.as<T>()), eps.as<T>());
  }
  bool operator==(const Threshold&) const = default;
};

/// max(x, floor) + eps of floats.
struct FloatThreshold {
  float floor;
  float eps;
  MHLA_DEVICE float operator()(float x) const { return (x < floor ? floor : x) + eps; }
};

/// Feature map. Its functions construct it.
struct FeatureMap {
  float floor;
  float eps;
  bool exponential;
  Threshold threshold{BothPairs::of(floor), BothPairs::of(eps)};

  static constexpr FeatureMap identity() {
    return {-std::numeric_limits<float>::infinity(), 0, false};
  }
  static constexpr FeatureMap relu(float eps = 1e-6f) { return {0, eps, false}; }
  static constexpr FeatureMap elu_plus_one() { return {0, 0, true}; }

  /// Calls work(formula) with the map's formula.
  template <class Work>
  MHLA_DEVICE void with_formula(const Work& work) const {
    if (exponential) {
      work(EluPlusOne{});
    } else {
      work(threshold);
    }
  }

  /// Calls work(formula) with the map's formula for floats. Its eps is not rounded.
  template <class Work>
  MHLA_DEVICE void with_float_formula(const Work& work) const {
    if (exponential) {
      work(EluPlusOne{});
    } else {
      work(FloatThreshold{floor, eps});
    }
  }

  bool operator==(const FeatureMap&) const = default;
};

/// A feature map of one's own: phi(x) = map.function(x) of each number, in float. phi is rounded to
/// the type of the tensors afterwards. Kernels copy the map and call its functions, which run on
/// host and device. mhla::Elementwise of such functions is a map for both libraries.
template <class M>
concept ElementwiseMap = std::is_trivially_copyable_v<M> && requires(const M& map, float x) {
  { map.function(x) } -> std::convertible_to<float>;
};

/// A map that gradients take, with phi'(x) = map.derivative(x).
template <class M>
concept DifferentiableElementwiseMap = ElementwiseMap<M> && requires(const M& map, float x) {
  { map.derivative(x) } -> std::convertible_to<float>;
};

/// phi'(x).
MHLA_DEVICE float derivative(const FeatureMap& map, float x) {
  if (map.exponential) return x > 0 ? 1.0f : ptx::ex2_approx(x * 1.442695041f);
  return x > map.floor ? 1.0f : 0.0f;
}
template <DifferentiableElementwiseMap M>
MHLA_DEVICE float derivative(const M& map, float x) {
  return static_cast<float>(map.derivative(x));
}

/// Multiplies pairs by phi' of other pairs, and rounds. Where phi' is 1 no bit changes, and where
/// phi' of a threshold is 0 the result is 0.
template <class T, int kCount>
MHLA_DEVICE void multiply_derivatives(const FeatureMap& map, std::uint32_t (&pairs)[kCount],
                                      const std::uint32_t (&x)[kCount]) {
  if (map.exponential) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kCount; ++i) {
      pairs[i] = ptx::pack<T>(ptx::low<T>(pairs[i]) * derivative(map, ptx::low<T>(x[i])),
                              ptx::high<T>(pairs[i]) * derivative(map, ptx::high<T>(x[i])));
    }
    return;
  }
  MHLA_CUDA_UNROLL
  for (int i = 0; i < kCount; ++i) {
    pairs[i] &= (ptx::low<T>(x[i]) > map.floor ? 0x0000FFFFu : 0u) |
                (ptx::high<T>(x[i]) > map.floor ? 0xFFFF0000u : 0u);
  }
}

/// Applies phi to both numbers of each pair. phi of NaN is NaN.
template <class T, class Formula, int kCount>
MHLA_DEVICE void apply(Formula phi, std::uint32_t (&pairs)[kCount]) {
  MHLA_CUDA_UNROLL
  for (std::uint32_t& x : pairs) {
    if constexpr (ElementwiseMap<Formula>) {
      x = ptx::pack<T>(static_cast<float>(phi.function(ptx::low<T>(x))),
                       static_cast<float>(phi.function(ptx::high<T>(x))));
    } else {
      x = phi.template of_pair<T>(x);
    }
  }
}

template <class T, int kCount>
MHLA_DEVICE void apply(const FeatureMap& map, std::uint32_t (&pairs)[kCount]) {
  map.with_formula([&](auto phi) { apply<T>(phi, pairs); });
}

}  // namespace mhla::cuda
