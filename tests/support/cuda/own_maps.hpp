#pragma once

/// \file
/// Feature maps of one's own, for tests: e^(x / 2), which is no 0 anywhere, softplus, and the
/// square of ReLU, which mhla::Elementwise makes of two functions.

#include <cmath>

#include "mhla/cuda/arch.cuh"
#include "mhla/policy/feature_map.hpp"

namespace cuda_test {

/// e^(rate x), with derivative rate e^(rate x).
struct Power {
  float rate = 0.5f;

  template <class A>
  MHLA_HOST_DEVICE A function(A x) const {
    return std::exp(static_cast<A>(rate) * x);
  }
  template <class A>
  MHLA_HOST_DEVICE A derivative(A x) const {
    return static_cast<A>(rate) * function(x);
  }
};

/// log(1 + e^(slope x)) / slope, with derivative 1 / (1 + e^(-slope x)).
struct Softplus {
  float slope = 2;

  template <class A>
  MHLA_HOST_DEVICE A function(A x) const {
    return std::log1p(std::exp(static_cast<A>(slope) * x)) / static_cast<A>(slope);
  }
  template <class A>
  MHLA_HOST_DEVICE A derivative(A x) const {
    return 1 / (1 + std::exp(-static_cast<A>(slope) * x));
  }
};

struct SquaredRelu {
  template <class A>
  MHLA_HOST_DEVICE A operator()(A x) const {
    return x > 0 ? x * x : 0;
  }
};
struct SquaredReluSlope {
  template <class A>
  MHLA_HOST_DEVICE A operator()(A x) const {
    return x > 0 ? 2 * x : 0;
  }
};
/// max(x, 0)^2, a map of the CPU library.
inline constexpr mhla::Elementwise kSquaredRelu(SquaredRelu{}, SquaredReluSlope{});

}  // namespace cuda_test
