#pragma once

/// \file
/// Checks in double: the gradient of the whole model against differences of its loss, DDIM with an
/// exact prediction, and the Frechet distance against a closed form.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "../support/gradient_check.hpp"
#include "frechet.hpp"
#include "training.hpp"

namespace draw_images {

inline constexpr double kLargestDdimError = 1e-2;  // of 2,000 steps
inline constexpr double kLargestFrechetError = 1e-12;

/// Checks a small model whose parameters all differ, on images of noise.
inline examples::GradientError check_gradient(Attention attention) {
  Model<double> model({.attention = attention, .dim = 8, .depth = 2, .heads = 2});
  const examples::Schedule schedule{.batch = 9};  // the last one has a shard for itself
  examples::Random random(2);
  std::vector<double> row(model.parameters().size());
  for (double& p : row) p = random.uniform() - 0.3;  // mixing keeps sums of features positive
  for (const mhla::Parameter& p : model.table().all()) {
    if (!examples::is_mixing(p.name)) continue;
    for (double& coefficient : p.place().numbers(std::span(row))) coefficient = random.uniform();
  }
  examples::Images images{std::vector<std::uint8_t>(3 * 28 * 28), {7, 0, 4}};
  for (std::uint8_t& pixel : images.pixels) pixel = static_cast<std::uint8_t>(random.below(256));
  mhla::ThreadPool pool(1);
  Workers<double> workers(model, pool);
  std::vector<double> gradient(row.size());
  model.set_parameters(row);
  workers.learn(model, images, schedule, 0, gradient);

  return examples::gradient_error(trained_tensors(model), row, gradient, 1e-4,
                                  [&](std::span<const double> parameters) {
                                    model.set_parameters(parameters);
                                    return workers.learn(model, images, schedule, 0, {});
                                  });
}

/// Samples a normal distribution of mean m and deviation d, whose prediction of x_0 is
/// m + a d^2 (x_t - a m) / (a^2 d^2 + s^2). In the limit of many steps noise e becomes m + d e; for
/// d = 0 the sample is m after any number of steps. Returns the largest error.
inline double check_ddim() {
  const auto error_of = [](double mean, double deviation, Index steps) {
    std::vector<double> noise{-2, -0.5, 0, 1, 3}, x = noise, x0(x.size());
    ddim(std::span<double>(x), std::span<double>(x0), steps,
         [&](std::span<const double> noisy, double t, std::span<double> clean) {
           const Mixture at(t);
           const double variance = deviation * deviation;
           const double gain =
               at.image * variance / (at.image * at.image * variance + at.noise * at.noise);
           for (std::size_t i = 0; i < noisy.size(); ++i) {
             clean[i] = mean + gain * (noisy[i] - at.image * mean);
           }
         });
    double error = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      error = std::max(error, std::abs(x[i] - mean - deviation * noise[i]));
    }
    return error;
  };
  return std::max(
      {error_of(0.3, 0, 1), error_of(-0.7, 0, 7), error_of(0.5, 0.2, 2000), error_of(-1, 2, 2000)});
}

/// Compares the distance with the closed form in two dimensions. For a 2 x 2 matrix A with
/// eigenvalues >= 0, tr A^(1/2) = (tr A + 2 det(A)^(1/2))^(1/2). Returns the largest relative
/// error.
inline double check_frechet() {
  examples::Random random(5);
  double error = 0;
  for (int i = 0; i < 20; ++i) {
    const auto draw = [&random] {
      Eigen::MatrixXd root(2, 2);
      Eigen::VectorXd mean(2);
      for (double& number : root.reshaped()) number = random.normal();
      for (double& number : mean) number = random.normal();
      return Normal(mean, root * root.transpose());
    };
    const Normal a = draw(), b = draw();
    const Eigen::MatrixXd product = a.covariance * b.covariance;
    const double expected = (a.mean - b.mean).squaredNorm() + a.covariance.trace() +
                            b.covariance.trace() -
                            2 * std::sqrt(product.trace() + 2 * std::sqrt(product.determinant()));
    error = std::max(error, std::abs(frechet_distance(a, b) - expected) / expected);
  }
  return error;
}

/// Prints the errors. Returns the status of the program.
inline int check() {
  bool ok = examples::gradients_are_right(check_gradient);
  const double ddim = check_ddim(), frechet = check_frechet();
  std::printf("largest error of DDIM %.1e, of the distance %.1e\n", ddim, frechet);
  ok = ok && ddim <= kLargestDdimError && frechet <= kLargestFrechetError;
  if (!ok) {
    std::fprintf(stderr, "FAILED: expected at most %.0e and %.0e\n", kLargestDdimError,
                 kLargestFrechetError);
  }
  return ok ? 0 : 1;
}

}  // namespace draw_images
