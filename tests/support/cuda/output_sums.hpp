#pragma once

/// \file
/// Sums that a row of outputs is computed from, given features and mixtures as rounded in device
/// memory, and the error bounds of a kernel's sums.
///
/// Products of two numbers of T are exact floats. The error of phi(q)^T S~ is that of its
/// additions, D of them, or 2 D with a low part. The error of phi(q) . z~ is that of a product and
/// D - 1 additions. A weight
///
///     P_tj = m phi(q_t) . phi(k_j)
///
/// has the error of D - 1 additions and a product with m, then of its rounding to T. Sums of
/// weights and of weighted values add their own additions (output_bound.hpp). Sums of scores for
/// Denominator::kCrossQuery are not rounded, nor are their mixtures.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator/device.hpp"
#include "support/cuda/kernel_case.hpp"
#include "support/cuda/output_bound.hpp"
#include "support/cuda/problem.hpp"
#include "support/cuda/summary_memory.hpp"

namespace cuda_test {

/// phi of a row, rounded.
template <class T>
std::vector<double> features(const mhla::cuda::FeatureMap& map, const Tensor<T>& x, int b, int t,
                             int h) {
  std::vector<double> phi;
  for (int d = 0; d < x.width(); ++d) phi.push_back(rounded_phi(map, x.at(b, t, h, d)));
  return phi;
}

/// phi(q) . phi(k) of a query and a key.
inline Bounded score_of(const std::vector<double>& query, const std::vector<double>& key) {
  BoundedSum sum;
  for (std::size_t d = 0; d < query.size(); ++d) sum.add(query[d] * key[d]);
  return sum.in_any_order();
}

/// P of a query and a key.
template <class T>
Bounded weight(const std::vector<double>& query, const std::vector<double>& key, double m) {
  const Bounded score = score_of(query, key);
  return then_rounded<T>({m * score.value, std::abs(m) * score.error});
}

/// Gains and gates of a case's outputs.
template <class T>
struct OutputNorms {
  static constexpr double kEps = 0.5;

  bool normed, gated;
  Array<float> gain;
  Tensor<T> gate;

  OutputNorms(const Case& c, int width)
      : normed(c.normed), gated(c.gated), gain(width), gate(c.queries<T>(width, 2)) {
    Random random(c.seed + 100);
    for (int e = 0; e < width; ++e) gain[e] = static_cast<float>(random.normal());
    gate.fill([&] { return 3 * random.normal(); });
  }

  mhla::cuda::OutputNorm stage() const {
    return {.normed = normed,
            .gated = gated,
            .eps = static_cast<float>(kEps),
            .gain = gain.data(),
            .gate = gate.input()};
  }
  void track(emulator::Device& device) {
    if (normed) device.track("gain", gain.data(), gain.bytes(), emulator::Access::kRead);
    if (gated) device.track("gate", gate.raw(), gate.bytes(), emulator::Access::kRead);
  }
  void expect_traffic(const emulator::Report& report) const {
    if (gated) {
      EXPECT_EQ(report.bytes_read("gate"), gate.row_bytes());
    }
  }

  /// Turns the quotients of a row into outputs.
  void apply(std::vector<Bounded>& o, int b, int t, int h) const {
    if (!normed) return;
    const Bounded scale = norm_scale(o, kEps);
    for (std::size_t e = 0; e < o.size(); ++e) {
      const auto column = static_cast<int>(e);
      o[e] = product(product(o[e], scale), {gain.value(column), 0});
      if (gated) o[e] = product(o[e], silu(gate.value(b, t, h, column)));
    }
  }
};

/// Numerators of a row, and its denominator.
template <class T>
class OutputSums {
 public:
  explicit OutputSums(int width) : numerators_(static_cast<std::size_t>(width)) {}

  /// Adds phi(q)^T S~ and, for Denominator::kKeySum, phi(q) . z~.
  template <int D, int E, mhla::cuda::Precision P>
  void add_mixture(const std::vector<double>& query, const SummaryMemory<T, D, E, P>& mixtures,
                   std::int64_t item, mhla::cuda::Denominator denominator) {
    for (int d = 0; d < D; ++d) {
      const double phi = query[static_cast<std::size_t>(d)];
      const std::int64_t row = item * D + d;
      for (int e = 0; e < E; ++e) {
        BoundedSum& n = numerators_[static_cast<std::size_t>(e)];
        n.add(phi * mixtures.high.value(row * E + e));
        if (mixtures.kPair) n.add(phi * mixtures.low.value(row * E + e));
      }
      if (denominator == mhla::cuda::Denominator::kKeySum) {
        denominator_.add(phi * mixtures.key_sum.value(row));
      }
    }
  }

  /// Adds P and P v.
  void add_value(Bounded weight, const Tensor<T>& v, int b, int t, int h) {
    add_weighted(weight, v, b, t, h);
    denominator_.add(weight.value, weight.error);
  }
  /// Adds P v alone.
  void add_weighted(Bounded weight, const Tensor<T>& v, int b, int t, int h) {
    for (std::size_t e = 0; e < numerators_.size(); ++e) {
      const double value = v.value(b, t, h, static_cast<int>(e));
      numerators_[e].add(weight.value * value, weight.error * std::abs(value));
    }
  }

  void add_to_numerator(int e, double x, double error) {
    numerators_[static_cast<std::size_t>(e)].add(x, error);
  }
  void add_to_denominator(double x, double error = 0) { denominator_.add(x, error); }

  /// Compares a row of outputs.
  void compare(Comparison& comparison, const Tensor<T>& o, int b, int t, int h,
               const mhla::cuda::Normalization& by, const OutputNorms<T>* norms = nullptr) const {
    const Bounded d = denominator_.in_any_order();
    std::vector<Bounded> row;
    for (const BoundedSum& n : numerators_) row.push_back(quotient(n.in_any_order(), d, by));
    if (norms != nullptr) norms->apply(row, b, t, h);
    for (std::size_t e = 0; e < row.size(); ++e) {
      const int column = static_cast<int>(e);
      comparison.compare(o.value(b, t, h, column), then_rounded<T>(row[e]), b, t, h, column);
    }
  }

 private:
  std::vector<BoundedSum> numerators_;
  BoundedSum denominator_;
};

}  // namespace cuda_test
