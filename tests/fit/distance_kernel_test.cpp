#include "mhla/fit/distance_kernel.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "mhla/policy/locality.hpp"

namespace mhla::test {
namespace {

/// The kernel of a function of distance between blocks of a grid.
template <class Kappa>
detail::DistanceKernel kernel_of(GridShape grid, Kappa&& kappa) {
  const Matrix<double> distances = detail::block_distances(grid, grid);
  detail::DistanceKernel kernel(distances);
  kernel.fit(distances.unaryExpr(kappa), Matrix<double>::Ones(distances.rows(), distances.cols()),
             distances);
  return kernel;
}

/// Value of a kernel at one distance.
double value_at(const detail::DistanceKernel& kernel, double distance) {
  return kernel.at(Matrix<double>::Constant(1, 1, distance))(0, 0);
}

TEST(DistanceKernel, MakesFunctionsThatDoNotDecay) {
  const auto ring = [](double d) { return std::max(0.0, 1 - std::abs(d - 2)); };
  const detail::DistanceKernel near = kernel_of({8, 8}, ring);
  for (const double d : {0.0, 1.0, 2.0, 3.0, 9.0, 20.0}) {
    EXPECT_NEAR(value_at(near, d), ring(d), 2e-3) << d;
  }
  EXPECT_NEAR(value_at(near, 1.5), 0.5, 0.1);
  const auto rising = [](double d) { return d; };  // the kernel ends after the last distance 7
  const detail::DistanceKernel far = kernel_of(8, rising);
  for (double d = 0; d < 7; d += 0.5) EXPECT_NEAR(value_at(far, d), d, 0.01);
  EXPECT_NEAR(value_at(far, 8), 0, 0.01);
}

TEST(DistanceKernel, WhatDecaysGoesOnBetweenAndBeyondTheDistances) {
  const auto kappa = [](double d) { return 2 * std::exp(-d / 3) + std::exp(-d * d / 50) + 0.5; };
  const detail::DistanceKernel kernel = kernel_of({8, 8}, kappa);
  for (double d = 0; d < 30; d += 0.25) EXPECT_NEAR(value_at(kernel, d), kappa(d), 0.01) << d;
}

}  // namespace
}  // namespace mhla::test
