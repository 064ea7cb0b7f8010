#pragma once

/// \file
/// Checks: the gradient of the whole model against differences of its loss, and the PSNR of a known
/// error.

#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "../support/gradient_check.hpp"
#include "workers.hpp"

namespace restore_video {

/// Checks a small model of random parameters.
inline examples::GradientError check_gradient(Attention attention) {
  const Settings settings{.attention = attention,
                          .height = 16,
                          .width = 24,
                          .frames = 8,
                          .stride = 1,
                          .patch = 4,
                          .dim = 16,
                          .depth = 2,
                          .heads = 2};
  const auto clips =
      training_clips<double>(Video::of_discs(60, settings.height, settings.width), settings, 0, 2);
  Model<double> model(settings);
  examples::Random random(2);
  std::vector<double> row(model.parameters().begin(), model.parameters().end());
  for (double& p : row) p = p * (0.5 + random.uniform()) + 0.1 * random.normal();
  model.set_parameters(row);
  Workers<double> workers(model, 1);
  std::vector<double> gradient(row.size()), ignored(row.size());
  workers.learn(clips, gradient);
  return examples::gradient_error(model.trained(), row, gradient, 1e-6,
                                  [&](std::span<const double> parameters) {
                                    model.set_parameters(parameters);
                                    return workers.learn(clips, ignored);
                                  });
}

/// PSNR of an error of 0.2 in hidden pixels, and a larger error elsewhere; expected are 20 dB.
inline double psnr_of_a_tenth() {
  const Clip<double> clip{mhla::Matrix<double>::Constant(2, 3, 0.5), {1, 0}, {}};
  mhla::Matrix<double> restored = clip.patches;
  restored.row(0).array() -= 0.2;
  restored.row(1).array() -= 1;
  Squares squares;
  squares.add(restored, clip);
  return squares.psnr();
}

/// Prints the errors. Returns the status of the program.
inline int check() {
  bool ok = examples::gradients_are_right(check_gradient);
  const double psnr = psnr_of_a_tenth();
  std::printf("an error of a tenth of the range has a PSNR of %.6f dB\n", psnr);
  ok = ok && std::abs(psnr - 20) < 1e-9;
  if (!ok) std::fprintf(stderr, "FAILED: expected 20 dB, and small errors\n");
  return ok ? 0 : 1;
}

}  // namespace restore_video
