#pragma once

/// \file
/// Tokens of the patches of a picture.

#include <cmath>
#include <numbers>

#include "../support/picture.hpp"

namespace attention_map {

using namespace picture;
using mhla::Matrix;

constexpr Index kPatch = 16;         // pixels along a side of a patch
constexpr double kLargestScore = 5;  // of softmax, which is then neither flat nor a single patch

/// Tokens [N,64] of the patches in raster order. Components of x are brightness in 4 x 4 cells, two
/// opponent colours in 2 x 2 cells and 8 waves of position. They are standardised over the picture
/// and weighted, and all x are scaled to one length.
inline Matrix<float> embed(const Picture& picture) {
  const Index columns = picture.cols() / kPatch, n = picture.size() / (kPatch * kPatch);
  Matrix<double> x = Matrix<double>::Zero(n, 32);
  for (Index i = 0; i < picture.rows(); ++i) {
    for (Index j = 0; j < picture.cols(); ++j) {
      const Index quarter = i / 8 % 2 * 2 + j / 8 % 2;
      const Eigen::Array3d c = picture(i, j).cast<double>() / 255;
      auto token = x.row(i / kPatch * columns + j / kPatch);
      token[i / 4 % 4 * 4 + j / 4 % 4] += c.sum();
      token[16 + quarter] += c[0] - c[1];
      token[20 + quarter] += c[0] + c[1] - 2 * c[2];
    }
  }
  for (Index t = 0; t < n; ++t) {
    Index f = 24;
    for (const Index place : {t / columns, t % columns}) {
      for (const double period : {64., 32.}) {  // in patches
        x(t, f++) = std::cos(static_cast<double>(place) * 2 * std::numbers::pi / period);
        x(t, f++) = std::sin(static_cast<double>(place) * 2 * std::numbers::pi / period);
      }
    }
  }
  Eigen::RowVectorXd weights = Eigen::RowVectorXd::Constant(32, 0.5);
  weights.segment(16, 8).setOnes();
  x.rowwise() -= x.colwise().mean().eval();
  const Eigen::ArrayXXd deviation = x.array().square().colwise().mean().sqrt();
  x.array().rowwise() *= weights.array() / (deviation.row(0) + 1e-3);
  x.rowwise().normalize();
  Matrix<double> tokens(n, 64);
  tokens << x, -x;
  return (tokens * std::sqrt(kLargestScore * 4)).cast<float>();  // largest score: |token|^2 / 8
}

}  // namespace attention_map
