#pragma once

/// \file
/// The Frechet distance of two sets of features, each taken for a normal distribution:
///
///     |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2))
///
/// with tr (C1 C2)^(1/2) = tr (R C2 R)^(1/2), R = C1^(1/2). FID is the same distance with features
/// of another network. Cost: some tens of F^3 flops for F features.
/// Source: Heusel et al., arXiv:1706.08500; Dowson and Landau, 1982.

#include <Eigen/Eigenvalues>
#include <cmath>
#include <utility>
#include <vector>

namespace draw_images {

struct Normal {
  Eigen::VectorXd mean;
  Eigen::MatrixXd covariance;

  /// \param features  [samples, F], at least two samples
  explicit Normal(const Eigen::MatrixXd& features) : mean(features.colwise().mean()) {
    const Eigen::MatrixXd centred = features.rowwise() - mean.transpose();
    covariance = centred.transpose() * centred / static_cast<double>(features.rows() - 1);
  }
  Normal(Eigen::VectorXd m, Eigen::MatrixXd c) : mean(std::move(m)), covariance(std::move(c)) {}
};

inline double frechet_distance(const Normal& one, const Normal& other) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> of_one(one.covariance);
  // Roundings leave eigenvalues of 0 slightly negative.
  const Eigen::MatrixXd root = of_one.eigenvectors() *
                               of_one.eigenvalues().cwiseMax(0).cwiseSqrt().asDiagonal() *
                               of_one.eigenvectors().transpose();
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> product(root * other.covariance * root,
                                                               Eigen::EigenvaluesOnly);
  return (one.mean - other.mean).squaredNorm() + one.covariance.trace() + other.covariance.trace() -
         2 * product.eigenvalues().cwiseMax(0).cwiseSqrt().sum();
}

/// Mean and standard deviation of a few numbers; the deviation of one number is 0.
struct Spread {
  double mean = 0, deviation = 0;

  explicit Spread(const std::vector<double>& numbers) {
    const Eigen::Map<const Eigen::ArrayXd> all(numbers.data(), std::ssize(numbers));
    mean = all.mean();
    if (all.size() > 1) {
      deviation = std::sqrt((all - mean).square().sum() / static_cast<double>(all.size() - 1));
    }
  }
};

}  // namespace draw_images
