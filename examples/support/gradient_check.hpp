#pragma once

/// \file
/// Check of a model's gradient against differences of its loss, in double. Along a random direction
/// of each tensor, (L(p + h) - L(p - h)) / 2h is compared with the derivative. Its truncation error
/// is h^2 L''' / 6, its rounding error about 2^-53 L / h.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "attention_names.hpp"
#include "optimizer.hpp"
#include "random.hpp"

namespace examples {

inline constexpr double kLargestGradientError = 1e-6;  // accuracy of the differences

struct GradientError {
  double relative = 0;  ///< largest, over the larger of the derivative and the gradient's norm
  std::string tensor;   ///< name of the tensor with that error
};

/// Largest error of a gradient.
/// \param gradient  gradient of the loss at `row`
/// \param loss      function: row -> loss
/// \param step      h. After a large error also h / 10 and h / 100, for kinks of relu within h.
template <class Loss>
GradientError gradient_error(const std::vector<TrainedTensor>& tensors, std::vector<double> row,
                             std::span<const double> gradient, double step, Loss&& loss) {
  Random random(3);
  GradientError worst;
  for (const TrainedTensor& tensor : tensors) {
    const std::span<double> numbers = tensor.of(std::span<double>(row));
    const std::span<const double> slopes = tensor.of(gradient);
    const std::vector<double> before(numbers.begin(), numbers.end());
    std::vector<double> direction(before.size());
    double derivative = 0, squares = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] = random.normal();
      derivative += direction[i] * slopes[i];
      squares += slopes[i] * slopes[i];
    }
    const auto loss_at = [&](double h) {
      for (std::size_t i = 0; i < before.size(); ++i) numbers[i] = before[i] + h * direction[i];
      return loss(std::span<const double>(row));
    };
    double error = std::numeric_limits<double>::infinity();
    for (const double h : {step, step / 10, step / 100}) {
      const double difference = (loss_at(h) - loss_at(-h)) / (2 * h);
      error = std::min(error, std::abs(difference - derivative) /
                                  std::max({std::abs(difference), std::sqrt(squares), 1e-12}));
      if (error <= kLargestGradientError) break;
    }
    std::ranges::copy(before, numbers.begin());
    if (!(error <= worst.relative)) worst = {error, tensor.name};
  }
  return worst;
}

/// Prints check_gradient(attention) of each attention.
/// \returns true if all errors are at most kLargestGradientError
template <class Check>
bool gradients_are_right(Check&& check_gradient) {
  bool right = true;
  for (const auto& [name, attention] : kAttentions) {
    const GradientError worst = check_gradient(attention);
    std::printf("%-7s  largest error of a gradient %.1e, in %s\n", name.c_str(), worst.relative,
                worst.tensor.c_str());
    right = right && worst.relative <= kLargestGradientError;
  }
  if (!right) {
    std::fprintf(stderr, "FAILED: expected gradients within %.0e\n", kLargestGradientError);
  }
  return right;
}

}  // namespace examples
