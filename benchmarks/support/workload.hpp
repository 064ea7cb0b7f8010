#pragma once

/// \file
/// The data of a shape, a function of tensor and position alone: other programs can draw the same
/// numbers. Drawing is fast enough to repeat it for every repetition.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "mhla/attention/batch.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/gradient/gradients.hpp"
#include "support/shapes.hpp"

namespace mhla::bench {

/// The counter-th output of splitmix64 from state 0 (Steele, Lea, Flood, OOPSLA 2014).
constexpr std::uint64_t splitmix64(std::uint64_t counter) {
  std::uint64_t z = counter * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// Element `i` of tensor 1 (q), 2 (k), 3 (v) or 4 (dout): a multiple of 2^-23, uniform in [-1, 1).
constexpr float element(std::uint64_t tensor, std::uint64_t i) {
  const auto bits = static_cast<std::int32_t>(splitmix64((tensor << 40) + i) >> 40);
  return static_cast<float>(bits) * 0x1p-23f - 1.0f;
}

/// A [B, N, H, width] tensor of zeros.
template <Scalar T>
Tensor<T> zeros(const Shape& shape, Index width) {
  return Tensor<T>({shape.batch, shape.tokens(), shape.heads, width});
}

/// A [B, N, H, width] tensor of drawn numbers.
template <Scalar T>
Tensor<T> draw(const Shape& shape, Index width, std::uint64_t tensor) {
  Tensor<T> drawn = zeros<T>(shape, width);
  std::uint64_t i = 0;
  for (T& x : drawn.data()) x = static_cast<T>(element(tensor, i++));
  return drawn;
}

/// q, k, v and out of a shape.
template <Scalar T>
class Workload {
 public:
  explicit Workload(const Shape& shape)
      : shape_(shape),
        q_(draw<T>(shape, shape.width, 1)),
        k_(draw<T>(shape, shape.width, 2)),
        v_(draw<T>(shape, shape.values, 3)),
        out_(zeros<T>(shape, shape.values)) {
    std::ranges::fill(out_.data(), static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
  }

  const Shape& shape() const { return shape_; }
  BatchInputs<T> inputs() const { return {.q = q_, .k = k_, .v = v_}; }
  TensorView<T> out() { return out_; }

 private:
  Shape shape_;
  Tensor<T> q_, k_, v_, out_;
};

/// The further tensors of a backward pass: dout, and gradients of q, k and v that start as zeros.
template <Scalar T>
class GradientWorkload {
 public:
  explicit GradientWorkload(const Shape& shape)
      : dout_(draw<T>(shape, shape.values, 4)),
        dq_(zeros<T>(shape, shape.width)),
        dk_(zeros<T>(shape, shape.width)),
        dv_(zeros<T>(shape, shape.values)) {}

  TensorView<const T> dout() const { return dout_; }
  BatchGradients<T> gradients() { return {.q = dq_, .k = dk_, .v = dv_}; }

 private:
  Tensor<T> dout_, dq_, dk_, dv_;
};

}  // namespace mhla::bench
