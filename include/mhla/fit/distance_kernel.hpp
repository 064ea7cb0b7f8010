#pragma once

/// \file
/// A kernel: a nonnegative function of the distance d between centres of blocks (resize.hpp):
///
///     kappa(d) = x + sum_h (y_h exp(-d / h) + z_h exp(-(d / h)^2)) + sum_k u_k hat_k(d)
///
/// The first terms decay, at scales h from one key block to 4 times the largest distance, 2^(1/4)
/// apart. They define values between the distances of a grid, and beyond the largest distance. The
/// hats, one per distance of the grid and at least 1/32 apart, make other functions. They cost 1e-4
/// of their squares, so they add only what the first terms cannot.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/fit/fit_options.hpp"
#include "mhla/fit/nonnegative.hpp"
#include "mhla/kernel/packet.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// A weighted sum of functions of a distance, at first the constant 1.
class DistanceKernel {
 public:
  /// Creates the functions for these distances, in key blocks.
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

  /// Number of functions: decaying ones, then hats.
  Index functions() const { return decaying() + knots(); }
  Index knots() const { return static_cast<Index>(knots_.size()); }
  double function(Index l, double d) const {
    if (l == 0) return 1;
    if (l >= decaying()) return hat(static_cast<std::size_t>(l - decaying()), d);
    const double share = d / scales_[static_cast<std::size_t>((l - 1) / 2)];
    return std::exp(l % 2 == 0 ? -share : -share * share);
  }

  /// Returns kappa at these distances.
  Matrix<double> at(const Matrix<double>& distances) const {
    std::vector<Index> taken;
    for (Index l = 0; l < functions(); ++l) {
      if (weight(l) > 0) taken.push_back(l);
    }
    Matrix<double> values(distances.rows(), distances.cols());
    for (Index n = 0; n < values.size(); ++n) {
      double& sum = values.data()[n] = 0;
      for (const Index l : taken) sum += weight(l) * function(l, distances.data()[n]);
    }
    return values;
  }

  /// Fits the weights, such that factor_ib kappa(d_ib) is nearest to m_ib.
  /// \param factors, distances  [Mq,Mk], as m; the distances are those of the constructor
  void fit(const Matrix<double>& m, const Matrix<double>& factors,
           const Matrix<double>& distances) {
    std::vector<double> squares(distances_.size()), products(distances_.size());
    for (Index n = 0; n < m.size(); ++n) {
      const double factor = factors.data()[n];
      const auto k = static_cast<std::size_t>(
          std::lower_bound(distances_.begin(), distances_.end(), distances.data()[n]) -
          distances_.begin());
      squares[k] += factor * factor;
      products[k] += factor * m.data()[n];
    }
    const Index count = functions();
    NormalEquations all{Matrix<double>(count, count), std::vector<double>(weights_.size()), {}};
    std::fill_n(all.gram.data(), count * count, 0.0);
    std::vector<double> values(weights_.size());  // values of the functions at a distance
    for (std::size_t k = 0; k < distances_.size(); ++k) {
      for (Index l = 0; l < count; ++l) {
        const double value = values[static_cast<std::size_t>(l)] = function(l, distances_[k]);
        all.right[static_cast<std::size_t>(l)] += products[k] * value;
        add_scaled(squares[k] * value, values.data(), all.gram.data() + l * count, l + 1);
      }
    }
    for (Index l = 0; l < count; ++l) {
      for (Index j = 0; j < l; ++j) all.gram(j, l) = all.gram(l, j);
    }
    solve(std::move(all));
  }
  /// Fits the weights to any problem.
  void solve(NormalEquations p) {
    constexpr double kPriceOfHats = 1e-4;
    for (Index l = decaying(); l < functions(); ++l) p.gram(l, l) *= 1 + kPriceOfHats;
    weights_ = nonnegative_least_squares(p.gram, p.right, {.weights = p.weights});
  }

 private:
  double weight(Index l) const { return weights_[static_cast<std::size_t>(l)]; }
  Index decaying() const { return 1 + 2 * static_cast<Index>(scales_.size()); }
  /// Hat k: 1 at knot k and 0 at its neighbours. The first is 1 before its knot; the last falls to
  /// 0 within one block after its knot.
  double hat(std::size_t k, double d) const {
    const double apart = d - knots_[k];
    if (apart < 0) return k == 0 ? 1 : std::max(0.0, 1 + apart / (knots_[k] - knots_[k - 1]));
    const double width = k + 1 < knots_.size() ? knots_[k + 1] - knots_[k] : 1;
    return std::max(0.0, 1 - apart / width);
  }

  std::vector<double> distances_;  // distinct, ascending
  std::vector<double> knots_;      // distances that have a hat
  std::vector<double> scales_;     // h, in key blocks
  std::vector<double> weights_;    // weights of all functions
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
