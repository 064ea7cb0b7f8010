#pragma once

/// \file
/// Outputs that kernels make of sums, and how far rounding may lead from them.
///
/// A numerator n or denominator d is known as its value in double and a bound of |x^ - x| of what a
/// kernel has. With s = scale d + eps, which costs two roundings and one more for the factor,
///
///     |ds| <= scale e_d + gamma_2 (scale (|d| + e_d) + |eps|)
///     o = n scale / s:   |o^ - o| <= (e_n scale + |o| |ds|) / (|s| - |ds|) + gamma_3 |o^|
///
/// and rounding to T moves o^ by at most u (|o^| + eta), eta the least normal number of T.
///
/// Norms and gates of a row (tile/output_norm.cuh) come before that: with mean squares s, which n +
/// 4 roundings lead to, 1 / sqrt(s) is a relative 2^-22 off the one of s^, and silu(g), where the
/// exponent g log2(e) is rounded twice, 2 |g| + 8 units of 2^-24; three products come to that.

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

/// A number, and how far off it may be.
struct Bounded {
  double value = 0;
  double error = 0;
};

/// A sum in float of terms that are off themselves. Whatever the order, a term passes at most n - 1
/// additions of n, and a rounding of its own if it is a product that is no float: gamma_n. Zeros
/// that fill up a tile cost nothing.
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

/// x after rounding to T.
template <class T>
Bounded then_rounded(Bounded x) {
  const double eta = std::ldexp(1.0, Format<T>::kLowest);
  return {x.value, x.error + kRoundoff<T> * (std::abs(x.value) + x.error + eta)};
}

/// Before it is rounded.
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

/// x y, which is rounded.
inline Bounded product(Bounded x, Bounded y) {
  const double value = x.value * y.value;
  const double error = std::abs(x.value) * y.error + x.error * (std::abs(y.value) + y.error);
  return {value, error + gamma(1) * (std::abs(value) + error)};
}

/// 1 / sqrt(mean of o^2 + eps) of a row.
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

/// phi as kernels have it: in float, rounded to T. Feature maps have a test of their own.
template <class T>
double rounded_phi(const mhla::cuda::FeatureMap& map, T x) {
  std::uint32_t pair[1] = {x.bits};
  mhla::cuda::apply<T>(map, pair);
  return to_double(T{static_cast<std::uint16_t>(pair[0])});
}

/// Compares outputs, and keeps the worst error as a part of its bound.
class Comparison {
 public:
  explicit Comparison(std::string name) : name_(std::move(name)) {}

  /// True as long as all was well. Where the definition gives no number none is wanted.
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
