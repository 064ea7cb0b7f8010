#pragma once

/// \file
/// Dual numbers: a value and its derivative in one direction (forward mode). A function written
/// for any scalar, given inputs whose tangents are a direction, returns its directional derivative.
///
///     (a + a' e) (b + b' e) = a b + (a' b + a b') e,   e^2 = 0
///
/// Branches are taken by values; at a kink the derivative is that of the branch taken.
///
/// Value and tangent carry their size s: the sum of the magnitudes of their terms once everything
/// is multiplied out. An algorithm may evaluate the same sums in A, in any order and factoring,
/// with at most m roundings per term. To first order it errs by at most gamma_m s (Higham, section
/// 3.1):
///
///     s(a +- b) = s(a) + s(b)       s(a b) = s(a) s(b)
///     s(a / b)  = s(a) / |b| + |a| s(b) / b^2     a quotient is not factored
///     s(e^x)    = e^x (1 + s(x) / 8) + t / u      the chain of x is less than an eighth of m; t is
///                                                 the smallest normal number of A, u its roundoff

#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <type_traits>

namespace mhla::test {

template <class A>
struct Dual {
  using W = long double;

  W value = 0, tangent = 0;
  W size = 0, tangent_size = 0;

  constexpr Dual() = default;
  constexpr Dual(W v, W t, W s, W ts) : value(v), tangent(t), size(s), tangent_size(ts) {}
  template <class Number>
  requires std::is_arithmetic_v<Number>
  constexpr Dual(Number v)  // NOLINT(google-explicit-constructor)
      : value(static_cast<W>(v)), size(v < 0 ? -value : value) {}

  friend Dual operator+(const Dual& a, const Dual& b) {
    return {a.value + b.value, a.tangent + b.tangent, a.size + b.size,
            a.tangent_size + b.tangent_size};
  }
  friend Dual operator-(const Dual& a) { return {-a.value, -a.tangent, a.size, a.tangent_size}; }
  friend Dual operator-(const Dual& a, const Dual& b) { return a + -b; }
  friend Dual operator*(const Dual& a, const Dual& b) {
    return {a.value * b.value, a.tangent * b.value + a.value * b.tangent, a.size * b.size,
            a.tangent_size * b.size + a.size * b.tangent_size};
  }
  friend Dual operator/(const Dual& a, const Dual& b) {
    const W divisor = std::abs(b.value), relative = b.size / divisor;
    const W y = a.value / b.value, of_y = a.size / divisor + std::abs(y) * relative;
    const W slope = (a.tangent - y * b.tangent) / b.value;
    return {y, slope, of_y,
            (a.tangent_size + of_y * b.tangent_size) / divisor + std::abs(slope) * relative};
  }
  Dual& operator+=(const Dual& b) { return *this = *this + b; }
  Dual& operator-=(const Dual& b) { return *this = *this - b; }
  Dual& operator*=(const Dual& b) { return *this = *this * b; }
  Dual& operator/=(const Dual& b) { return *this = *this / b; }

  friend bool operator==(const Dual& a, const Dual& b) { return a.value == b.value; }
  friend auto operator<=>(const Dual& a, const Dual& b) { return a.value <=> b.value; }

  friend Dual exp(const Dual& a) {
    using Limits = std::numeric_limits<A>;
    const W y = std::exp(a.value),
            of_y = y * (1 + a.size / 8) + 2 * W(Limits::min()) / W(Limits::epsilon());
    return {y, y * a.tangent, of_y, of_y * a.tangent_size};
  }
};

}  // namespace mhla::test

/// Traits that Eigen needs for matrices of dual numbers.
template <class A>
struct Eigen::NumTraits<mhla::test::Dual<A>> : Eigen::NumTraits<long double> {
  using Real = mhla::test::Dual<A>;
  using NonInteger = mhla::test::Dual<A>;
  using Nested = mhla::test::Dual<A>;
  using Literal = mhla::test::Dual<A>;
  enum { RequireInitialization = 1, IsComplex = 0, IsInteger = 0, IsSigned = 1 };
};
