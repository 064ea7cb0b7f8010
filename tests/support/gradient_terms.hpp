#pragma once

/// \file
/// Numbers that know the size of the sum they stand for.
///
/// Terms{x, s}: x is a sum of products, s the sum of the magnitudes of its terms once everything is
/// multiplied out, in units in which inputs have s = |x|. An algorithm that evaluates the same sums
/// in any order, factored in any way, with at most m roundings on the way of each term, errs by at
/// most gamma_m s to first order (Higham, section 3.1):
///
///     s(a +- b) = s(a) + s(b)       s(a b) = s(a) s(b)
///     s(a / b)  = s(a) / |b| + |a| s(b) / b^2     a quotient is a number of its own: not factored
///     s(e^x)    = e^x (1 + s(x) / 8) + t / u      x is at most a dense layer's output, whose chain
///                                                 of D + 3 is less than an eighth of m; t is the
///                                                 smallest normal number of A: e^x < t is 0 in A
///
/// u is the unit roundoff of A, in which the algorithm computes.

#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <type_traits>

namespace mhla::test {

template <class W, class A>
struct Terms {
  W value{};
  W size{};

  constexpr Terms() = default;
  constexpr Terms(W v, W s) : value(v), size(s) {}
  template <class Number>
  requires std::is_arithmetic_v<Number>
  constexpr Terms(Number v)  // NOLINT(google-explicit-constructor)
      : value(static_cast<W>(v)), size(value < 0 ? -value : value) {}

  friend Terms operator+(const Terms& a, const Terms& b) {
    return {a.value + b.value, a.size + b.size};
  }
  friend Terms operator-(const Terms& a, const Terms& b) {
    return {a.value - b.value, a.size + b.size};
  }
  friend Terms operator-(const Terms& a) { return {-a.value, a.size}; }
  friend Terms operator*(const Terms& a, const Terms& b) {
    return {a.value * b.value, a.size * b.size};
  }
  friend Terms operator/(const Terms& a, const Terms& b) {
    const W quotient = a.value / b.value, divisor = std::abs(b.value);
    return {quotient, a.size / divisor + std::abs(quotient) * (b.size / divisor)};
  }
  Terms& operator+=(const Terms& b) { return *this = *this + b; }
  Terms& operator-=(const Terms& b) { return *this = *this - b; }
  Terms& operator*=(const Terms& b) { return *this = *this * b; }
  Terms& operator/=(const Terms& b) { return *this = *this / b; }

  friend bool operator==(const Terms& a, const Terms& b) { return a.value == b.value; }
  friend bool operator<(const Terms& a, const Terms& b) { return a.value < b.value; }
  friend bool operator>(const Terms& a, const Terms& b) { return b.value < a.value; }
  friend bool operator<=(const Terms& a, const Terms& b) { return a.value <= b.value; }
  friend bool operator>=(const Terms& a, const Terms& b) { return b.value <= a.value; }

  friend Terms exp(const Terms& a) {
    using Limits = std::numeric_limits<A>;
    const W y = std::exp(a.value);
    return {y, y * (1 + a.size / 8) + static_cast<W>(2 * Limits::min() / Limits::epsilon())};
  }
};

}  // namespace mhla::test

/// What Eigen needs to know for matrices of Terms.
template <class W, class A>
struct Eigen::NumTraits<mhla::test::Terms<W, A>> : Eigen::NumTraits<W> {
  using Real = mhla::test::Terms<W, A>;
  using NonInteger = mhla::test::Terms<W, A>;
  using Nested = mhla::test::Terms<W, A>;
  using Literal = mhla::test::Terms<W, A>;
  enum { RequireInitialization = 1, IsComplex = 0, IsInteger = 0, IsSigned = 1 };
};
