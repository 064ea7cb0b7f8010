#pragma once

/// \file
/// The gradient of the whole model against differences of its loss.

#include <cstdint>
#include <span>
#include <vector>

#include "../support/gradient_check.hpp"
#include "workers.hpp"

namespace train_images {

/// Checks a small model on images of noise; the last image has a shard of its own.
inline examples::GradientError check_gradient(Attention attention) {
  constexpr Index kImages = 5;
  Model<double> model({.attention = attention, .dim = 8, .depth = 2, .heads = 2, .lepe = 3});
  examples::Random random(2);
  std::vector<double> row(model.parameters().begin(), model.parameters().end());
  for (double& p : row) p = p * (0.5 + random.uniform()) + 0.01 * random.normal();
  model.set_parameters(row);
  Images images{std::vector<std::uint8_t>(kImages * examples::kPixels * examples::kPixels),
                {3, 8, 0, 5, 1}};
  for (std::uint8_t& pixel : images.pixels) pixel = static_cast<std::uint8_t>(random.below(256));

  Workers<double> workers(model, 1);
  const std::vector<Index> numbers{0, 1, 2, 3, 4};
  std::vector<double> gradient(row.size());
  workers.learn(model, images, numbers, std::span<double>(gradient));
  const auto tensors = examples::trained_tensors(model.table(), !model.settings().trains_mixing());
  return examples::gradient_error(tensors, row, gradient, 1e-6,
                                  [&](std::span<const double> parameters) {
                                    model.set_parameters(parameters);
                                    return workers.evaluate(model, images, numbers).loss / kImages;
                                  });
}

}  // namespace train_images
