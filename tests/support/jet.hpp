#pragma once

/// \file
/// Numbers that carry their derivative and error, for definitions of many steps. (dual.hpp is for
/// sums and products alone, whose terms it multiplies out.) Branches are taken by values.

#include <Eigen/Core>
#include <cmath>
#include <type_traits>

namespace mhla::test {

/// A value and its derivative in one direction (forward mode): (a + a' e)(b + b' e) = ab + (a'b +
/// ab') e. The derivative is a sum over all paths from the variables to this number; each path is a
/// product of the steps' derivatives. Any evaluation of that sum, forward or backward, errs by
/// roundings along these paths, so its error is relative to them.
struct Jet {
  double value = 0, tangent = 0;
  double ways = 0;   ///< sum of the magnitudes of the paths that make up `tangent`
  double error = 0;  ///< error of `value` in units of the unit roundoff, to first order, if
                     ///< every step rounds once (running error analysis: Higham, section 3.3)

  constexpr Jet() = default;
  constexpr Jet(double v, double t, double w, double e) : value(v), tangent(t), ways(w), error(e) {}
  template <class Number>
  requires std::is_arithmetic_v<Number>
  constexpr Jet(Number v) : value(static_cast<double>(v)) {}  // NOLINT(google-explicit-constructor)

  friend Jet operator+(const Jet& a, const Jet& b) {
    const double v = a.value + b.value;
    return {v, a.tangent + b.tangent, a.ways + b.ways, a.error + b.error + std::abs(v)};
  }
  friend Jet operator-(const Jet& a) { return {-a.value, -a.tangent, a.ways, a.error}; }
  friend Jet operator-(const Jet& a, const Jet& b) { return a + -b; }
  friend Jet operator*(const Jet& a, const Jet& b) {
    const double v = a.value * b.value, size_a = std::abs(a.value), size_b = std::abs(b.value);
    return {v, a.tangent * b.value + a.value * b.tangent, a.ways * size_b + size_a * b.ways,
            a.error * size_b + size_a * b.error + std::abs(v)};
  }
  friend Jet operator/(const Jet& a, const Jet& b) {
    const double v = a.value / b.value, size = std::abs(v), size_b = std::abs(b.value);
    return {v, (a.tangent - v * b.tangent) / b.value, (a.ways + size * b.ways) / size_b,
            (a.error + size * b.error) / size_b + size};
  }
  Jet& operator+=(const Jet& b) { return *this = *this + b; }
  Jet& operator-=(const Jet& b) { return *this = *this - b; }
  Jet& operator*=(const Jet& b) { return *this = *this * b; }
  Jet& operator/=(const Jet& b) { return *this = *this / b; }

  friend bool operator==(const Jet& a, const Jet& b) { return a.value == b.value; }
  friend auto operator<=>(const Jet& a, const Jet& b) { return a.value <=> b.value; }

  friend Jet sqrt(const Jet& a) {
    const double root = std::sqrt(a.value), slope = 1 / (2 * root);
    return {root, slope * a.tangent, slope * a.ways, slope * a.error + root};
  }
  /// Exponential with up to 4 roundings.
  friend Jet exp(const Jet& a) {
    const double y = std::exp(a.value);
    return {y, y * a.tangent, y * a.ways, y * (a.error + 4)};
  }
};

}  // namespace mhla::test

/// Traits that Eigen needs for matrices of jets.
template <>
struct Eigen::NumTraits<mhla::test::Jet> : Eigen::NumTraits<double> {
  using Real = mhla::test::Jet;
  using NonInteger = mhla::test::Jet;
  using Nested = mhla::test::Jet;
  using Literal = mhla::test::Jet;
  enum { RequireInitialization = 1, IsComplex = 0, IsInteger = 0, IsSigned = 1 };
};
