#pragma once

/// \file
/// One head of a tensor as a matrix of doubles, its features, and their magnitudes.

#include <cmath>

#include "mhla/layer/rotary.hpp"
#include "support/cuda/exact_phi.hpp"
#include "support/cuda/reference.hpp"

namespace cuda_test {

/// One head of a tensor, with f applied to each number.
template <class T, class F>
Numbers head(const Tensor<T>& x, int b, int h, F&& f) {
  Numbers numbers(x.tokens(), x.width());
  for (int t = 0; t < x.tokens(); ++t) {
    for (int d = 0; d < x.width(); ++d) numbers(t, d) = f(x.value(b, t, h, d));
  }
  return numbers;
}

/// The feature map of queries or keys.
template <class T>
auto feature(const mhla::cuda::FeatureMap& map, const ExactMap& own) {
  return [map, own](double x) { return own ? own.function(x) : exact_phi<T>(map, x); };
}

/// Sets masked rows to 0, which adds nothing to any sum.
inline Numbers without_masked(Numbers x, const mhla::Mask& mask) {
  for (Eigen::Index t = 0; t < x.rows(); ++t) {
    if (!mask[t]) x.row(t).setZero();
  }
  return x;
}

/// Features, rotated by angles if there are any.
inline Numbers turned(const Numbers& x, const Array<float>& angles) {
  if (angles.size() == 0) return x;
  Numbers table(x.rows(), x.cols()), y = x;
  for (Eigen::Index i = 0; i < x.size(); ++i) table.data()[i] = angles.value(i);
  const mhla::RotaryRows<double> rows{table.data(), x.rows(), x.cols(),
                                      mhla::RotaryPairs::kInterleaved};
  mhla::rotary(x, rows, 1, y);
  return y;
}

/// Magnitudes of features plus eta. For rotated features they are the magnitudes of the addends.
inline Numbers magnitudes(const Numbers& x, double eta) { return (x.array().abs() + eta).matrix(); }
inline Numbers turned_magnitudes(const Numbers& x, const Array<float>& angles, double eta) {
  const Numbers plus = magnitudes(x, eta);
  if (angles.size() == 0) return plus;
  Numbers y = plus;
  for (Eigen::Index i = 0; i < x.size(); i += 2) {
    const double cos = std::abs(angles.value(i)), sin = std::abs(angles.value(i + 1));
    const double* const pair = plus.data() + i;
    y.data()[i] = pair[0] * cos + pair[1] * sin + eta;
    y.data()[i + 1] = pair[1] * cos + pair[0] * sin + eta;
  }
  return y;
}

}  // namespace cuda_test
