#pragma once

/// \file
/// Data of kernel tests: 16-bit numbers, arrays and [B, N, H, D] tensors in the memory layouts of
/// kernels. All memory is NaN at first, including padding between rows. Missing writes and wrong
/// reads therefore show.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "support/random.hpp"

namespace cuda_test {

using mhla::cuda::bfloat16;
using mhla::cuda::half;
using mhla::test::Random;

/// Format of a type: kDigits significant bits; 2^kLowest is the least normal number.
template <class T>
struct Format;
template <>
struct Format<float> {
  static constexpr int kDigits = 24, kLowest = -126;
  static constexpr double kMax = 0x1.FFFFFEp127;
  static constexpr const char* kName = "float";
};
template <>
struct Format<bfloat16> {
  static constexpr int kDigits = 8, kLowest = -126;
  static constexpr double kMax = 0x1.FEp127;
  static constexpr const char* kName = "bfloat16";
};
template <>
struct Format<half> {
  static constexpr int kDigits = 11, kLowest = -14;
  static constexpr double kMax = 65504;
  static constexpr const char* kName = "half";
};

/// Bounds the rounding error: |round(x) - x| <= kRoundoff<T> |x| + kUnderflow<T>, unless it
/// overflows.
template <class T>
inline constexpr double kRoundoff = 1.0 / (1 << Format<T>::kDigits);
template <class T>
inline const double kUnderflow = std::ldexp(0.5, Format<T>::kLowest - Format<T>::kDigits + 1);

/// Bound of n consecutive float roundings: (1 + u)^n - 1 <= gamma(n).
inline double gamma(double n) { return n * 0x1p-24 / (1 - n * 0x1p-24); }

/// 2^n for n of -1022 to 1023, much faster than std::ldexp.
constexpr double power_of_two(int n) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(n + 1023) << 52);
}

/// The exponent of a number of at least 0, or that of the least normal number of T if it is
/// greater.
template <class T>
int exponent_of(double x) {
  const auto bits = static_cast<int>(std::bit_cast<std::uint64_t>(x) >> 52);
  return std::max(bits - 1023, Format<T>::kLowest);
}

/// Rounds x to the nearest number of T, ties to even, overflow to infinity.
template <class T>
double round_to(double x) {
  using F = Format<T>;
  const double size = std::abs(x);
  if (!(size <= 2 * F::kMax)) return x + std::copysign(std::numeric_limits<double>::infinity(), x);
  // Its last digit is the last one of T.
  const double large = power_of_two(exponent_of<T>(size) - (F::kDigits - 1)) * 0x1.8p52;
  const double y = (size + large) - large;
  return std::copysign(y > F::kMax ? std::numeric_limits<double>::infinity() : y, x);
}

template <class T>
double to_double(T x) {
  using F = Format<T>;
  constexpr int kFraction = F::kDigits - 1;
  const std::uint64_t fraction = x.bits & ((1u << kFraction) - 1);
  const std::uint64_t exponent = (x.bits & 0x7FFFu) >> kFraction;
  const double sign = x.bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 0x7FFF >> kFraction) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) {
    return sign * static_cast<double>(fraction) * power_of_two(F::kLowest - kFraction);
  }
  return sign * std::bit_cast<double>((exponent + std::uint64_t{1022 + F::kLowest}) << 52 |
                                      fraction << (52 - kFraction));
}
inline double to_double(float x) { return static_cast<double>(x); }

/// Returns the number of T nearest to x.
template <class T>
T from_double(double x) {
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(x);
  } else {
    using F = Format<T>;
    constexpr int kFraction = F::kDigits - 1, kTop = 0x7FFF >> kFraction;
    const unsigned sign = std::signbit(x) ? 0x8000u : 0u;
    const double y = std::abs(round_to<T>(x));
    unsigned bits = 0;
    if (std::isnan(y)) {
      bits = 0x7FFF;
    } else if (std::isinf(y)) {
      bits = static_cast<unsigned>(kTop) << kFraction;
    } else if (y != 0) {
      const int exponent = exponent_of<T>(y);
      // From 2^kFraction on if normal.
      const double fraction = y * power_of_two(kFraction - exponent);
      bits = (static_cast<unsigned>(exponent - F::kLowest) << kFraction) +
             static_cast<unsigned>(fraction);
    }
    return T{static_cast<std::uint16_t>(sign | bits)};
  }
}

/// Numbers in device memory, aligned to 256 bytes, all NaN at first.
template <class X>
class Array {
 public:
  explicit Array(std::int64_t size)
      : size_(size), data_(static_cast<X*>(::operator new(bytes() + 1, kAlignment))) {
    std::memset(static_cast<void*>(data_.get()), 0xFF, bytes());
  }

  X* data() { return data_.get(); }
  const X* data() const { return data_.get(); }
  std::int64_t size() const { return size_; }
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(X); }
  X& operator[](std::int64_t i) { return data()[i]; }
  const X& operator[](std::int64_t i) const { return data()[i]; }
  double value(std::int64_t i) const { return to_double((*this)[i]); }
  unsigned char* raw() { return reinterpret_cast<unsigned char*>(data()); }
  const unsigned char* raw() const { return reinterpret_cast<const unsigned char*>(data()); }

 private:
  static constexpr std::align_val_t kAlignment{256};
  struct Free {
    void operator()(X* x) const { ::operator delete(x, kAlignment); }
  };
  std::int64_t size_;
  std::unique_ptr<X, Free> data_;
};

/// Layout of a tensor's rows: elements from one batch item, token and head to the next.
struct Layout {
  std::int64_t batch, token, head;

  static Layout tokens_first(std::int64_t n, std::int64_t h, std::int64_t d) {  // [B,N,H,D]
    return {n * h * d, h * d, d};
  }
  static Layout heads_first(std::int64_t n, std::int64_t h, std::int64_t d) {  // [B,H,N,D]
    return {n * h * d, d, n * d};
  }
  /// [B,N,H,D] with gaps after rows, tokens and batch items.
  static Layout padded(std::int64_t n, std::int64_t h, std::int64_t d) {
    return {n * (h * (d + 8) + 24) + 16, h * (d + 8) + 24, d + 8};
  }
  /// Any of the above layouts.
  static Layout any(int kind, std::int64_t n, std::int64_t h, std::int64_t d) {
    return kind == 0 ? tokens_first(n, h, d) : kind == 1 ? heads_first(n, h, d) : padded(n, h, d);
  }
};

/// A tensor of numbers.
template <class T>
class Tensor {
 public:
  Tensor(int batches, int tokens, int heads, int width, Layout layout)
      : batches_(batches),
        tokens_(tokens),
        heads_(heads),
        width_(width),
        layout_(layout),
        numbers_(place(batches - 1, tokens - 1, heads - 1, width - 1) + 1) {}

  int batches() const { return batches_; }
  int tokens() const { return tokens_; }
  int heads() const { return heads_; }
  int width() const { return width_; }

  T& at(int b, int t, int h, int d) { return numbers_[place(b, t, h, d)]; }
  T at(int b, int t, int h, int d) const { return numbers_[place(b, t, h, d)]; }
  double value(int b, int t, int h, int d) const { return to_double(at(b, t, h, d)); }

  /// Sets every number to draw(), rounded.
  template <class Draw>
  void fill(Draw&& draw) {
    each([&](int b, int t, int h, int d) { at(b, t, h, d) = from_double<T>(draw()); });
  }

  /// Calls f(b, t, h, d) for every number.
  template <class F>
  void each(F&& f) const {
    for (int b = 0; b < batches_; ++b) {
      for (int t = 0; t < tokens_; ++t) {
        for (int h = 0; h < heads_; ++h) {
          for (int d = 0; d < width_; ++d) f(b, t, h, d);
        }
      }
    }
  }

  /// Returns true if memory between the rows is unchanged.
  bool padding_is_untouched() const {
    Array<T> others(numbers_.size());
    std::memcpy(others.raw(), numbers_.raw(), numbers_.bytes());
    each([&](int b, int t, int h, int d) {
      std::memset(static_cast<void*>(&others[place(b, t, h, d)]), 0xFF, sizeof(T));
    });
    return std::all_of(others.raw(), others.raw() + others.bytes(),
                       [](unsigned char x) { return x == 0xFF; });
  }

  /// For Params and for Device::track.
  mhla::cuda::ConstTokenTensor input() const {
    return {numbers_.raw(), kBytes * layout_.batch, kBytes * layout_.head, kBytes * layout_.token};
  }
  mhla::cuda::TokenTensor output() {
    return {numbers_.raw(), kBytes * layout_.batch, kBytes * layout_.head, kBytes * layout_.token};
  }
  unsigned char* raw() { return numbers_.raw(); }
  const unsigned char* raw() const { return numbers_.raw(); }
  std::size_t bytes() const { return numbers_.bytes(); }
  /// Bytes of all rows, without padding.
  std::size_t row_bytes() const {
    return sizeof(T) * static_cast<std::size_t>(batches_) * static_cast<std::size_t>(tokens_) *
           static_cast<std::size_t>(heads_) * static_cast<std::size_t>(width_);
  }

 private:
  static constexpr std::int64_t kBytes = sizeof(T);

  std::int64_t place(int b, int t, int h, int d) const {
    return b * layout_.batch + t * layout_.token + h * layout_.head + d;
  }

  int batches_, tokens_, heads_, width_;
  Layout layout_;
  Array<T> numbers_;
};

}  // namespace cuda_test
