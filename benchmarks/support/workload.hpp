#pragma once

/// \file
/// The data of a shape: a function of tensor and position alone, so that other programs can draw
/// the same, and quick enough to be drawn anew for every repetition.

#include <cstdint>

#include "mhla/attention/batch.hpp"
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

template <Scalar T>
using Data = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// All elements of a tensor with rows of `width` numbers.   // [B*N*H*width]
template <Scalar T>
Data<T> draw(const Shape& shape, Index width, std::uint64_t tensor) {
  Data<T> data(shape.batch * shape.tokens() * shape.heads * width);
  for (Index i = 0; i < data.size(); ++i) {
    data[i] = static_cast<T>(element(tensor, static_cast<std::uint64_t>(i)));
  }
  return data;
}

/// Such a tensor in [B, N, H, width] layout.
template <class U>
TensorView<U> view(U* data, const Shape& shape, Index width) {
  return bnhd(data, shape.batch, shape.tokens(), shape.heads, width);
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
        out_(v_.size()) {
    out_.setConstant(static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
  }

  const Shape& shape() const { return shape_; }
  BatchInputs<T> inputs() const {
    return {.q = view(q_.data(), shape_, shape_.width),
            .k = view(k_.data(), shape_, shape_.width),
            .v = view(v_.data(), shape_, shape_.values)};
  }
  TensorView<T> out() { return view(out_.data(), shape_, shape_.values); }

 private:
  Shape shape_;
  Data<T> q_, k_, v_, out_;
};

/// What a backward pass reads and adds to besides: dout, and gradients of q, k and v that start
/// from zeros.
template <Scalar T>
class GradientWorkload {
 public:
  explicit GradientWorkload(const Shape& shape)
      : shape_(shape),
        dout_(draw<T>(shape, shape.values, 4)),
        dq_(zeros(shape.width)),
        dk_(zeros(shape.width)),
        dv_(zeros(shape.values)) {}

  TensorView<const T> dout() const { return view(dout_.data(), shape_, shape_.values); }
  BatchGradients<T> gradients() {
    return {.q = view(dq_.data(), shape_, shape_.width),
            .k = view(dk_.data(), shape_, shape_.width),
            .v = view(dv_.data(), shape_, shape_.values)};
  }

 private:
  Data<T> zeros(Index width) const {
    return Data<T>::Zero(shape_.batch * shape_.tokens() * shape_.heads * width);
  }

  Shape shape_;
  Data<T> dout_, dq_, dk_, dv_;
};

}  // namespace mhla::bench
