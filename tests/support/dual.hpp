#pragma once

/// \file
/// Dual numbers: a value and its derivative in one direction (forward mode). A function written
/// for any scalar, given inputs whose tangents are a direction, returns its directional derivative.
///
///     (a + a' e) (b + b' e) = a b + (a' b + a b') e,   e^2 = 0
///
/// A branch is taken by values; at a kink the derivative is that of the branch taken.

#include <Eigen/Core>
#include <cmath>
#include <type_traits>

namespace mhla::test {

template <class W>
struct Dual {
  W value{};
  W tangent{};

  constexpr Dual() = default;
  constexpr Dual(W v, W t = W(0)) : value(v), tangent(t) {}  // NOLINT(google-explicit-constructor)
  template <class Number>
  requires std::is_arithmetic_v<Number>
  constexpr Dual(Number v)  // NOLINT(google-explicit-constructor)
      : value(static_cast<W>(v)), tangent(W(0)) {}

  friend Dual operator+(const Dual& a, const Dual& b) {
    return {a.value + b.value, a.tangent + b.tangent};
  }
  friend Dual operator-(const Dual& a, const Dual& b) {
    return {a.value - b.value, a.tangent - b.tangent};
  }
  friend Dual operator-(const Dual& a) { return {-a.value, -a.tangent}; }
  friend Dual operator*(const Dual& a, const Dual& b) {
    return {a.value * b.value, a.tangent * b.value + a.value * b.tangent};
  }
  friend Dual operator/(const Dual& a, const Dual& b) {
    const W quotient = a.value / b.value;
    return {quotient, (a.tangent - quotient * b.tangent) / b.value};
  }
  Dual& operator+=(const Dual& b) { return *this = *this + b; }
  Dual& operator-=(const Dual& b) { return *this = *this - b; }
  Dual& operator*=(const Dual& b) { return *this = *this * b; }
  Dual& operator/=(const Dual& b) { return *this = *this / b; }

  friend bool operator==(const Dual& a, const Dual& b) { return a.value == b.value; }
  friend bool operator<(const Dual& a, const Dual& b) { return a.value < b.value; }
  friend bool operator>(const Dual& a, const Dual& b) { return b.value < a.value; }
  friend bool operator<=(const Dual& a, const Dual& b) { return a.value <= b.value; }
  friend bool operator>=(const Dual& a, const Dual& b) { return b.value <= a.value; }

  friend Dual exp(const Dual& a) {
    using std::exp;
    const W value = exp(a.value);
    return {value, value * a.tangent};
  }
};

}  // namespace mhla::test

/// What Eigen needs to know for matrices of dual numbers.
template <class W>
struct Eigen::NumTraits<mhla::test::Dual<W>> : Eigen::NumTraits<W> {
  using Real = mhla::test::Dual<W>;
  using NonInteger = mhla::test::Dual<W>;
  using Nested = mhla::test::Dual<W>;
  using Literal = mhla::test::Dual<W>;
  enum { RequireInitialization = 1, IsComplex = 0, IsInteger = 0, IsSigned = 1 };
};
