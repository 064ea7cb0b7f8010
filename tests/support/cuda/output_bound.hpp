#pragma once

/// \file
/// Outputs that kernels compute from sums, and their error bounds.
///
/// For a numerator n or denominator d, the value in double and a bound of |x^ - x| for the kernel's
/// x^ are known. With s = scale d + eps, which costs two roundings and one more for the factor,
///
///     |ds| <= scale e_d + gamma_2 (scale (|d| + e_d) + |eps|)
///     o = n scale / s:   |o^ - o| <= (e_n scale + |o| |ds|) / (|s| - |ds|) + gamma_3 |o^|
///
/// Rounding to T changes o^ by at most u (|o^| + eta), where eta is the least normal number of T.
///
/// The norm and gate of a row (tile/output_norm.cuh) come before that rounding. The mean square s
/// has n + 4 roundings. The approximate 1 / sqrt(s^) has a relative error of 2^-22. The exponent g
/// log2(e) of silu(g) is rounded twice. With three products, silu(g) has a relative error of 2^-24
/// (2 |g| + 8).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "mhla/cuda/kernel/parameters.cuh"
#include "support/cuda/problem.hpp"

namespace cuda_test {

inline constexpr auto kNone = mhla::cuda::Denominator::kNone;
inline constexpr auto kKeySum = mhla::cuda::Denominator::kKeySum;

/// A number and its error bound.
struct Bounded {
  double value = 0;
  double error = 0;
};

/// A float sum of terms with errors of their own. In any order, a term passes at most n - 1
/// additions of n, and one rounding if it is a product that is not exact: gamma_n. Zeros that pad a
/// tile cost nothing.
class BoundedSum {
 public:
  void add(double value, double error = 0) {
    sum_.value += value;
    sum_.error += error;
    magnitude_ += std::abs(value) + error;
    ++terms_;
  }
  Bounded in_any_order() const { return {sum_.value, sum_.error + gamma(terms_) * magnitude_}; }

 private:
  Bounded sum_;
  double magnitude_ = 0;
  int terms_ = 0;
};

/// Returns x after rounding to T.
template <class T>
Bounded then_rounded(Bounded x) {
  const double eta = std::ldexp(1.0, Format<T>::kLowest);
  return {x.value, x.error + kRoundoff<T> * (std::abs(x.value) + x.error + eta)};
}

/// Returns the quotient before it is rounded.
inline Bounded quotient(Bounded n, Bounded d, const mhla::cuda::Normalization& by) {
  const auto scale = static_cast<double>(by.scale), eps = static_cast<double>(by.eps);
  double divisor = 1, off = 0;
  if (by.denominator != mhla::cuda::Denominator::kNone) {
    divisor = scale * d.value + eps;
    off = scale * d.error + gamma(2) * (scale * (std::abs(d.value) + d.error) + std::abs(eps));
  }
  const double o = n.value * scale / divisor;
  const double rest = std::abs(divisor) - off;
  EXPECT_GT(rest, 0.5 * std::abs(divisor)) << "the problem is ill-conditioned";
  const double error = (n.error * scale + std::abs(o) * off) / rest;
  return {o, error + gamma(3) * (std::abs(o) + error)};
}

template <class T>
Bounded output(Bounded n, Bounded d, const mhla::cuda::Normalization& by) {
  return then_rounded<T>(quotient(n, d, by));
}

/// Returns x y, including the rounding of the product.
inline Bounded product(Bounded x, Bounded y) {
  const double value = x.value * y.value;
  const double error = std::abs(x.value) * y.error + x.error * (std::abs(y.value) + y.error);
  return {value, error + gamma(1) * (std::abs(value) + error)};
}

/// Returns 1 / sqrt(mean of o^2 + eps) of a row.
inline Bounded norm_scale(const std::vector<Bounded>& o, double eps) {
  const auto n = static_cast<double>(o.size());
  double mean = eps, off = 0;
  for (const Bounded& x : o) {
    mean += x.value * x.value / n;
    off += (2 * std::abs(x.value) + x.error) * x.error / n;
  }
  off += gamma(n + 4) * (mean + off);
  EXPECT_GT(mean, 2 * off) << "the problem is ill-conditioned";
  const double scale = 1 / std::sqrt(mean);
  return {scale, (1 + 0x1p-22) / std::sqrt(mean - off) - scale};
}

inline Bounded silu(double g) {
  const double value = g / (1 + std::exp(-g));
  return {value, std::abs(value) * (2 * std::abs(g) + 8) * 0x1p-24 * 1.01};
}

/// phi as kernels compute it: in float, rounded to T. Feature maps have a test of their own.
template <class T>
double rounded_phi(const mhla::cuda::FeatureMap& map, T x) {
  std::uint32_t pair[1] = {x.bits};
  mhla::cuda::apply<T>(map, pair);
  return to_double(T{static_cast<std::uint16_t>(pair[0])});
}

/// Compares outputs, and keeps the largest error over its bound.
class Comparison {
 public:
  explicit Comparison(std::string name) : name_(std::move(name)) {}

  /// Returns true while all outputs are right. Undefined expected values are not compared.
  bool compare(double actual, Bounded wanted, int b, int t, int h, int e) {
    const double error = std::abs(actual - wanted.value);
    const bool fine = std::isfinite(wanted.value) ? error <= wanted.error : !std::isfinite(actual);
    if (fine && std::isfinite(error)) worst_ = std::max(worst_, error / wanted.error);
    if (!fine && failures_++ < 3) {
      ADD_FAILURE() << name_ << ": o(" << b << ", " << t << ", " << h << ", " << e << ") is "
                    << actual << " instead of " << wanted.value << " within " << wanted.error;
    }
    return failures_ == 0;
  }
  double worst() const { return worst_; }

 private:
  std::string name_;
  double worst_ = 0;
  int failures_ = 0;
};

}  // namespace cuda_test
