#pragma once

/// \file
/// The data of a shape: a function of tensor and position alone, so that other programs can draw
/// the same, and quick enough to be drawn anew for every repetition.

#include <cstdint>

#include "mhla/attention/batch.hpp"
#include "support/shapes.hpp"

namespace mhla::bench {

/// The counter-th output of splitmix64 from state 0 (Steele, Lea, Flood, OOPSLA 2014).
constexpr std::uint64_t splitmix64(std::uint64_t counter) {
  std::uint64_t z = counter * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// Element `i` of tensor 1 (q), 2 (k) or 3 (v): a multiple of 2^-23, uniform in [-1, 1).
constexpr float element(std::uint64_t tensor, std::uint64_t i) {
  const auto bits = static_cast<std::int32_t>(splitmix64((tensor << 40) + i) >> 40);
  return static_cast<float>(bits) * 0x1p-23f - 1.0f;
}

/// q, k, v and out of a shape in [B, N, H, D] layout.
template <Scalar T>
class Workload {
  using Data = Eigen::Matrix<T, Eigen::Dynamic, 1>;

 public:
  explicit Workload(const Shape& shape)
      : shape_(shape),
        q_(draw(shape.width, 1)),
        k_(draw(shape.width, 2)),
        v_(draw(shape.values, 3)),
        out_(v_.size()) {
    out_.setConstant(static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
  }

  const Shape& shape() const { return shape_; }
  BatchInputs<T> inputs() const {
    return {.q = view(q_.data(), shape_.width),
            .k = view(k_.data(), shape_.width),
            .v = view(v_.data(), shape_.values)};
  }
  TensorView<T> out() { return view(out_.data(), shape_.values); }

 private:
  Data draw(Index width, std::uint64_t tensor) const {
    Data data(shape_.batch * shape_.tokens() * shape_.heads * width);
    for (Index i = 0; i < data.size(); ++i) {
      data[i] = static_cast<T>(element(tensor, static_cast<std::uint64_t>(i)));
    }
    return data;
  }
  template <class U>
  TensorView<U> view(U* data, Index width) const {
    return bnhd(data, shape_.batch, shape_.tokens(), shape_.heads, width);
  }

  Shape shape_;
  Data q_, k_, v_, out_;
};

}  // namespace mhla::bench
