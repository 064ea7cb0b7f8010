#pragma once

/// \file
/// Random gradient calls, the memory of their gradients, and the comparison with the CPU's.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "support/cuda/gradient_reference.hpp"
#include "support/cuda/random_call.hpp"

namespace cuda_test {

/// A random gradient call.
template <class T, int D, int E>
GradientCall<T> random_gradient_call(const CallShape& shape, std::uint64_t seed) {
  Call<T> forward = random_call<T, D, E>(shape, seed);
  const int n = forward.o.tokens();
  Tensor<T> dout(shape.batch, n, shape.heads, E, Layout::any(shape.layout, n, shape.heads, E));
  Random random(seed + 1);
  dout.fill([&] { return random.uniform(-1, 1); });
  return {std::move(forward), std::move(dout)};
}

/// Memory for the gradients of a call.
template <class T>
struct GradientTensors {
  Tensor<T> q, k, v, gate;
  Array<float> mixing, gain;

  GradientTensors(const GradientCall<T>& call, int layout)
      : q(like(call.q, layout)),
        k(like(call.k, layout)),
        v(like(call.v, layout)),
        gate(like(call.dout, layout)),
        mixing(call.mixing.size()),
        gain(call.gain.size()) {}

 private:
  static Tensor<T> like(const Tensor<T>& x, int layout) {
    return Tensor<T>(x.batches(), x.tokens(), x.heads(), x.width(),
                     Layout::any(layout, x.tokens(), x.heads(), x.width()));
  }
};

/// Compares numbers with their expected values. Each must be within its bound, and all of a tensor
/// near in norm.
template <class Report>
class GradientComparison {
 public:
  explicit GradientComparison(const Report& report) : report_(report) {}

  void add(const char* name, std::int64_t place, double value, double exact, double bound) {
    const double error = std::abs(value - exact);
    const double ratio = error == 0 ? 0 : error / bound;
    worst_ = std::max(worst_, ratio);
    if (std::abs(exact) > 1e-9 * bound) {  // not a difference of equal numbers
      errors_ += error * error;
      norm_ += exact * exact;
    }
    if (ratio <= 1 || failed_) return;  // false for NaN
    failed_ = true;
    report_(std::string(name) + "[" + std::to_string(place) + "] is " + std::to_string(value) +
            ", expected " + std::to_string(exact) + " within " + std::to_string(bound));
  }
  /// Checks the norm of the errors of a tensor, after all its numbers. The tensor must not be a
  /// difference of larger numbers. Independent rounding errors are far below the worst case, wrong
  /// numbers are not.
  void expect_near_in_norm(const char* name) {
    constexpr double kLargestError = 0.03;
    const double relative = norm_ > 0 ? std::sqrt(errors_ / norm_) : 0;
    if (!(relative <= kLargestError) && !failed_) {
      failed_ = true;
      report_(std::string(name) + ": the error is " + std::to_string(relative) + " of the norm");
    }
  }
  /// Begins a tensor.
  void begin() { errors_ = norm_ = 0; }
  double worst() const { return worst_; }

 private:
  const Report& report_;
  double worst_ = 0, errors_ = 0, norm_ = 0;
  bool failed_ = false;
};

/// Compares all gradients with the CPU's, and calls report(what) for the first wrong one. Returns
/// the largest error over its bound.
template <class T, class Report>
double compare(const GradientCall<T>& call, const GradientTensors<T>& got, const Report& report) {
  const int widest = std::max({call.q.tokens(), call.k.tokens(), 256});
  const double chain =
      4.0 * widest + 2.0 * std::sqrt(static_cast<double>(call.coefficients())) + 64;
  GradientComparison comparison(report);
  Numbers mixing = Numbers::Zero(1, call.mixing.size()), mixing_bound = mixing;
  Numbers gain = Numbers::Zero(1, call.gain.size()), gain_bound = gain;
  for (int b = 0; b < call.q.batches(); ++b) {
    for (int h = 0; h < call.q.heads(); ++h) {
      const ExpectedGradient e = expected_gradient(call, b, h, chain);
      const auto rows = [&](const char* name, const Tensor<T>& x, const Numbers& exact,
                            const Numbers& bound) {
        comparison.begin();
        for (int t = 0; t < x.tokens(); ++t) {
          for (int d = 0; d < x.width(); ++d) {
            comparison.add(name, t * x.width() + d, x.value(b, t, h, d), exact(t, d), bound(t, d));
          }
        }
        if (!call.normed()) comparison.expect_near_in_norm(name);
      };
      rows("dq", got.q, e.q, e.q_bound);
      rows("dk", got.k, e.k, e.k_bound);
      rows("dv", got.v, e.v, e.v_bound);
      if (call.gated()) rows("dgate", got.gate, e.gate, e.gate_bound);
      const Eigen::Index first = call.matrix_of(b, h);
      for (Eigen::Index i = 0; i < e.mixing.size(); ++i) {
        mixing(0, first + i) += e.mixing.data()[i];
        mixing_bound(0, first + i) += e.mixing_bound.data()[i];
      }
      if (gain.size() > 0) gain += e.gain, gain_bound += e.gain_bound;
    }
  }
  comparison.begin();
  for (Eigen::Index i = 0; i < mixing.size(); ++i) {
    const bool gap = std::isnan(call.mixing.value(i));
    if (gap && std::isnan(got.mixing.value(i))) continue;
    comparison.add("dmixing", i, got.mixing.value(i), mixing(0, i), mixing_bound(0, i));
  }
  // With rotated features, denominators cancel most of dm.
  if (!call.normed() && !call.rotary()) comparison.expect_near_in_norm("dmixing");
  for (Eigen::Index i = 0; i < gain.size(); ++i) {
    comparison.add("dgain", i, got.gain.value(i), gain(0, i), gain_bound(0, i));
  }
  return comparison.worst();
}

}  // namespace cuda_test
