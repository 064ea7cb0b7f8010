#pragma once

/// \file
/// A kernel, a nonnegative function of the distance d between the centres of blocks (resize.hpp):
///
///     kappa(d) = x + sum_h (y_h exp(-d / h) + z_h exp(-(d / h)^2)) + sum_k u_k hat_k(d)
///
/// The first terms decay, at scales h from a key block to 4 times the largest distance, 2^(1/4)
/// apart: they say what is between the distances of a grid, and beyond the largest. The hats make
/// other functions: one at each distance of the grid, 1/32 of it apart. They cost 1e-4 of their
/// squares, so that they only make what the others cannot.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/fit/fit_options.hpp"
#include "mhla/fit/nonnegative.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Functions of a distance, and how much of each: at first 1, the function that is constant.
class DistanceKernel {
 public:
  /// With the functions for these distances, in key blocks.
  explicit DistanceKernel(const Matrix<double>& distances) {
    distances_.assign(distances.data(), distances.data() + distances.size());
    std::sort(distances_.begin(), distances_.end());
    distances_.erase(std::unique(distances_.begin(), distances_.end()), distances_.end());
    for (const double d : distances_) {
      if (knots_.empty() || d > knots_.back() * 33 / 32) knots_.push_back(d);
    }
    const double longest = 4 * std::max(distances_.back(), 1.0);
    for (double h = 1; h < longest; h *= std::exp2(0.25)) scales_.push_back(h);
    weights_.assign(static_cast<std::size_t>(functions()), 0);
    weights_[0] = 1;
  }

  /// Functions: those that decay, then the hats.
  Index functions() const { return decaying() + knots(); }
  Index knots() const { return static_cast<Index>(knots_.size()); }
  double function(Index l, double d) const {
    if (l == 0) return 1;
    if (l >= decaying()) return hat(static_cast<std::size_t>(l - decaying()), d);
    const double share = d / scales_[static_cast<std::size_t>((l - 1) / 2)];
    return std::exp(l % 2 == 0 ? -share : -share * share);
  }

  /// kappa at these distances.
  Matrix<double> at(const Matrix<double>& distances) const {
    std::vector<Index> taken;
    for (Index l = 0; l < functions(); ++l) {
      if (weight(l) > 0) taken.push_back(l);
    }
    return distances.unaryExpr([&](double d) {
      double sum = 0;
      for (const Index l : taken) sum += weight(l) * function(l, d);
      return sum;
    });
  }

  /// Takes the weights with which factor_ib kappa(d_ib) is nearest to m_ib.
  /// \param factors, distances  [Mq,Mk], as m; the distances are those of the constructor
  void fit(const Matrix<double>& m, const Matrix<double>& factors,
           const Matrix<double>& distances) {
    const Index count = static_cast<Index>(distances_.size());
    const auto begin = distances_.begin(), end = distances_.end();
    Matrix<double> squares = Matrix<double>::Zero(count, 1), products = squares;
    for (Index i = 0; i < m.rows(); ++i) {
      for (Index b = 0; b < m.cols(); ++b) {
        const Index k = std::lower_bound(begin, end, distances(i, b)) - begin;
        squares(k, 0) += factors(i, b) * factors(i, b);
        products(k, 0) += factors(i, b) * m(i, b);
      }
    }
    Matrix<double> values(count, functions());
    for (Index k = 0; k < count; ++k) {
      for (Index l = 0; l < functions(); ++l) {
        values(k, l) = function(l, distances_[static_cast<std::size_t>(k)]);
      }
    }
    const Matrix<double> weighted = squares.col(0).asDiagonal() * values;
    const Matrix<double> right = values.transpose().lazyProduct(products);
    solve({values.transpose().lazyProduct(weighted),
           {right.data(), right.data() + right.size()},
           {}});
  }
  /// The same for any problem of the weights.
  void solve(NormalEquations p) {
    constexpr double kPriceOfHats = 1e-4;
    p.gram.diagonal().tail(knots()) *= 1 + kPriceOfHats;
    weights_ = nonnegative_least_squares(p.gram, p.right, {.weights = p.weights});
  }

 private:
  double weight(Index l) const { return weights_[static_cast<std::size_t>(l)]; }
  Index decaying() const { return 1 + 2 * static_cast<Index>(scales_.size()); }
  /// 1 at knot k and 0 at its neighbours; in front of the first one 1, a block behind the last 0.
  double hat(std::size_t k, double d) const {
    const double apart = d - knots_[k];
    if (apart < 0) return k == 0 ? 1 : std::max(0.0, 1 + apart / (knots_[k] - knots_[k - 1]));
    const double width = k + 1 < knots_.size() ? knots_[k + 1] - knots_[k] : 1;
    return std::max(0.0, 1 - apart / width);
  }

  std::vector<double> distances_;  // different ones, ascending
  std::vector<double> knots_;      // those with a hat
  std::vector<double> scales_;     // h, in key blocks
  std::vector<double> weights_;    // of all functions
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
