#pragma once

/// \file
/// Feature maps of stage 1 in double, with eps rounded as on the device.

#include <algorithm>
#include <cmath>

#include "mhla/cuda/tile/feature_map.cuh"
#include "support/cuda/problem.hpp"

namespace cuda_test {

inline const auto kRelu = mhla::cuda::FeatureMap::relu();
inline const auto kElu = mhla::cuda::FeatureMap::elu_plus_one();
inline const auto kIdentity = mhla::cuda::FeatureMap::identity();

/// The feature map for numbers of T.
template <class T>
double exact_phi(const mhla::cuda::FeatureMap& map, double x) {
  if (map.exponential) return x > 0 ? x + 1 : std::exp(x);
  return std::max(x, static_cast<double>(map.floor)) + round_to<T>(static_cast<double>(map.eps));
}

}  // namespace cuda_test
