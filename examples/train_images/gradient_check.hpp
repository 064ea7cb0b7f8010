#pragma once

/// \file
/// The gradient of the whole model against differences of its loss, in double.
///
/// A few random parameters of every tensor; (L(p + h) - L(p - h)) / 2h differs from the derivative
/// by h^2 L''' / 6 and by roundings of about 2^-53 L / h. Where the first step is too far off
/// a shorter one counts, as the corner of some relu may lie within h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "workers.hpp"

namespace train_images {

inline constexpr double kLargestGradientError = 1e-6;  // differences are good to about 2e-7

struct GradientError {
  double relative = 0;  ///< largest, over the larger of the derivative and the tensor's mean one
  std::string tensor;   ///< where
};

/// Compares on images of noise, of which the last has a shard for itself, with a small model.
inline GradientError check_gradient(Attention attention, Index seed) {
  constexpr Index kImages = 5, kParameters = 4;  // of each tensor
  constexpr double kSteps[] = {1e-6, 3e-7};

  const Settings settings{.attention = attention, .dim = 8, .depth = 2, .heads = 2, .seed = seed};
  Model<double> model(settings);
  examples::Random random(static_cast<std::uint64_t>(seed) + 1);
  for (double& p : model.parameters()) p *= 0.5 + random.uniform();  // no two alike
  Images images{std::vector<std::uint8_t>(kImages * kPixels * kPixels), {3, 8, 0, 5, 1}};
  for (std::uint8_t& pixel : images.pixels) pixel = static_cast<std::uint8_t>(random.below(256));

  Workers<double> workers(settings, 1);
  const std::vector<Index> numbers{0, 1, 2, 3, 4};
  std::vector<double> gradient(model.parameters().size());
  workers.learn(model, images, numbers, std::span<double>(gradient));
  const auto loss_at = [&](std::size_t i, double value) {
    const double before = std::exchange(model.parameters()[i], value);
    const double loss = workers.evaluate(model, images, numbers).loss / kImages;
    model.parameters()[i] = before;
    return loss;
  };

  GradientError worst;
  for (const NamedSlice& tensor : model.layout().tensors()) {
    const auto all = tensor.slice.vector(std::span<double>(gradient));
    const double squares = std::inner_product(all.begin(), all.end(), all.begin(), 0.0);
    const double mean = std::sqrt(squares / static_cast<double>(all.size()));
    for (Index n = 0; n < kParameters; ++n) {
      const auto i =
          static_cast<std::size_t>(tensor.slice.begin + random.below(tensor.slice.size()));
      const double at = model.parameters()[i];
      double error = std::numeric_limits<double>::infinity();
      for (const double h : kSteps) {
        if (error <= kLargestGradientError) break;
        const double difference = (loss_at(i, at + h) - loss_at(i, at - h)) / (2 * h);
        error = std::min(error, std::abs(difference - gradient[i]) /
                                    std::max({std::abs(difference), mean, 1e-12}));
      }
      if (!(error <= worst.relative)) worst = {error, tensor.name};
    }
  }
  return worst;
}

}  // namespace train_images
