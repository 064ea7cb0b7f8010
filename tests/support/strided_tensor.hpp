#pragma once

/// \file
/// A [B,N,H,D] tensor in one of the layouts that users have, at any address, in memory that is NaN
/// elsewhere.

#include "mhla/core/tensor.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla::test {

template <class T>
class StridedTensor {
 public:
  /// Random numbers in [-1, 1].
  /// \param shared  true if all heads may be the same memory
  StridedTensor(Random& rng, const Shape& shape, bool shared = false) : shape_(shape) {
    const auto [b, n, h, d] = shape;
    const Index row = d + rng.integer(0, 3);  // with unused numbers after every row
    const Index kind = rng.integer(0, shared ? 4 : 3);
    strides_ = kind == 0   ? Shape{n * h * row, h * row, row, 1}    // token-major
               : kind == 1 ? Shape{h * n * row, row, n * row, 1}    // head-major
               : kind == 2 ? Shape{n * 3 * h * d, 3 * h * d, d, 1}  // of a packed qkv
               : kind == 3 ? Shape{1, b, n * b, h * n * b}          // tokens innermost
                           : Shape{n * row, row, 0, 1};             // one head for all
    offset_ = rng.integer(0, 17);
    memory_ = unwritten<T>(1, (kind == 3 ? d * strides_[3] : b * strides_[0]) + offset_ + 16);
    for_each(
        [&rng](T& x) { x = static_cast<T>(static_cast<accumulator_t<T>>(rng.uniform(-1, 1))); });
  }

  TensorView<T> view() const { return {memory_.data() + offset_, shape_, strides_}; }
  /// Calls f with every element.
  template <class F>
  void for_each(F&& f) const {
    const TensorView<T> x = view();
    for (Index i = 0; i < x.batch() * x.tokens() * x.heads() * x.width(); ++i) {
      const Index row = i / x.width() / x.heads();
      f(x(row / x.tokens(), row % x.tokens(), i / x.width() % x.heads(), i % x.width()));
    }
  }
  /// True if the memory outside the tensor is unchanged.
  bool nothing_beside() const {
    const StridedTensor copy = *this;
    const T nan = unwritten<T>(1, 1)(0, 0);
    copy.for_each([nan](T& x) { x = nan; });
    return same_bits(copy.memory_, unwritten<T>(1, memory_.size()));
  }

 private:
  Shape shape_, strides_{};
  Index offset_ = 0;
  mutable Matrix<T> memory_;
};

}  // namespace mhla::test
