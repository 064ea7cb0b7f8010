#pragma once

/// \file
/// Shared parts of the checks of golden files: values of their metadata, and errors.

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "mhla/io/safetensors.hpp"

namespace mhla::test::golden {

/// A value of the metadata: a text, or JSON.
template <class V>
V value(const Safetensors& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) throw std::runtime_error("lacks metadata key '" + key + "'");
  if constexpr (std::is_same_v<V, std::string>) {
    return found->second;
  } else {
    return nlohmann::json::parse(found->second).get<V>();
  }
}

/// Tolerances relative to a tensor's largest magnitude.
inline constexpr double kOutputTolerance = 1e-9, kGradientTolerance = 1e-7;

/// A sum below this part of the magnitudes of its terms is mostly rounding.
inline constexpr double kCancelled = 1e-6;

/// Largest difference from a tensor of a file, and its largest magnitude.
struct Error {
  double difference = 0, largest = 0;
  double all = 0;    ///< sum of differences
  double terms = 0;  ///< magnitudes of the terms of all elements, where known
  bool compared = false;

  template <class Ours, class Golden>
  void add(const Eigen::MatrixBase<Ours>& ours, const Eigen::MatrixBase<Golden>& golden) {
    if (ours.rows() != golden.rows() || ours.cols() != golden.cols()) {
      throw std::runtime_error("has a tensor of another shape than ours");
    }
    for (Index i = 0; i < ours.rows(); ++i) {
      for (Index j = 0; j < ours.cols(); ++j) {
        const double error = std::abs(ours(i, j) - golden(i, j));
        difference = std::max(difference, std::isfinite(error) ? error : HUGE_VAL);
        largest = std::max(largest, std::abs(golden(i, j)));
        all += error;
        compared = true;
      }
    }
  }
  /// Infinite if nothing was compared. A tensor that is zero by algebra holds only rounding, so it
  /// is compared with its terms.
  double relative() const {
    if (!compared) return HUGE_VAL;
    if (difference == 0) return 0;
    const double of_largest = largest > 0 ? difference / largest : HUGE_VAL;
    const double of_terms = terms > 0 ? all / (kCancelled * terms) : HUGE_VAL;
    return std::min(of_largest, std::isfinite(of_terms) ? of_terms : HUGE_VAL);
  }
};

/// Errors of a file: in double by tensor name, and in float divided by their bounds.
struct Result {
  std::map<std::string, Error> outputs, gradients;
  double in_float = 0;

  /// Counts an error that cannot be compared as infinite.
  void raise_in_float(double error, double bound) {
    const bool comparable = std::isfinite(error) && std::isfinite(bound) && bound >= 0;
    in_float = std::max(in_float, !comparable ? HUGE_VAL : error == 0 ? 0 : error / bound);
  }
  static std::pair<std::string, double> worst(const std::map<std::string, Error>& errors) {
    std::pair<std::string, double> result{"none", 0};
    for (const auto& [name, error] : errors) {
      if (error.relative() >= result.second) result = {name, error.relative()};
    }
    return result;
  }
};

}  // namespace mhla::test::golden
