#pragma once

/// \file
/// Decaying mixing matrices (policy/decay_mixing.hpp) by least squares: R terms with nonnegative
/// weights. Their decays come from a grid that is refined around the chosen decays:
///
///     lambda = 2^(-1/h), the half-life h in blocks from 1/8 on; and 0, 1
///
/// The fit is to targets, weighted with what queries read (MixingFit), or to the coefficients of a
/// matrix. A model's outputs as targets compress its matrix.
/// Cost: about 200 M^3 multiply-adds for targets, M^2 for coefficients.

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/fit/mixing_fit.hpp"
#include "mhla/fit/nonnegative.hpp"
#include "mhla/policy/decay_mixing.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Returns the fitted matrix, with at least one and at most `terms` terms.
/// \throws option_error unless terms >= 1 and the fit is causal; as MixingFit::solve.
template <Accumulator A>
DecayMixing<A> fit_decay(const MixingFit<A>& fit, Index terms = 4);

/// Fits the coefficients on and below the diagonal of a matrix [M,M].
/// \throws option_error unless terms >= 1 and coefficients are finite; shape_error unless the
///     matrix is square.
template <class A>
DecayMixing<std::remove_const_t<A>> fit_decay(const MixingView<A>& m, Index terms = 4);
template <Accumulator A>
DecayMixing<A> fit_decay(const MixingMatrix<A>& m, Index terms = 4) {
  return fit_decay(m.view(), terms);
}

// ------------------------------------------------------------------------------------------------

namespace detail {

inline void expect_terms(Index terms) {
  if (terms < 1) fail_option("fit_decay", "terms", "is " + std::to_string(terms), "at least 1");
}

/// \param equations  equations(decays) returns the problem of their weights
template <Accumulator A, class Equations>
DecayMixing<A> solve_decay(Index terms, Index blocks, Equations&& equations) {
  // Half-lives from 1/8 block to 16 times all blocks, sqrt(2) apart; then finer around chosen ones.
  const double longest = 16 * static_cast<double>(std::max<Index>(blocks, 1));
  std::vector<double> half_lives;
  for (double h = 0.125; h < longest; h *= std::sqrt(2)) half_lives.push_back(h);
  const auto decay = [](double half_life) { return std::exp2(-1 / half_life); };

  std::vector<double> decays, weights;
  double spacing = std::sqrt(2);
  for (int round = 0; round < 6; ++round, spacing = std::sqrt(spacing)) {
    decays = {0, 1};
    for (const double h : half_lives) decays.push_back(decay(h));
    const NormalEquations p = equations(decays);
    weights = nonnegative_least_squares(p.gram, p.right, {.weights = p.weights, .nonzeros = terms});
    std::vector<double> taken;
    for (std::size_t l = 2; l < decays.size(); ++l) {
      if (weights[l] == 0) continue;
      const double h = half_lives[l - 2], step = std::sqrt(spacing);
      for (const double finer : {h / spacing, h / step, h, h * step, h * spacing}) {
        taken.push_back(finer);
      }
    }
    if (taken.empty()) break;
    std::sort(taken.begin(), taken.end());
    half_lives = taken;
  }

  std::vector<A> a, lambda;
  for (std::size_t l = 0; l < decays.size(); ++l) {
    if (weights[l] == 0) continue;
    a.push_back(static_cast<A>(weights[l]));
    lambda.push_back(static_cast<A>(decays[l]));
  }
  if (a.empty()) a.push_back(0), lambda.push_back(0);  // no nonnegative term lowers the residual
  return {std::span<const A>(a), std::span<const A>(lambda)};
}

}  // namespace detail

template <Accumulator A>
DecayMixing<A> fit_decay(const MixingFit<A>& fit, Index terms) {
  detail::expect_terms(terms);
  if (fit.order() != Order::kCausal) {
    detail::fail_option("fit_decay", "fit", "is bidirectional", "a causal one");
  }
  return detail::solve_decay<A>(terms, fit.start().rows(), [&](const std::vector<double>& decays) {
    return fit.normal_equations(static_cast<Index>(decays.size()), [&](Index l, Index i, Index b) {
      return std::pow(decays[static_cast<std::size_t>(l)], static_cast<double>(i - b));
    });
  });
}

template <class A>
DecayMixing<std::remove_const_t<A>> fit_decay(const MixingView<A>& m, Index terms) {
  detail::expect_terms(terms);
  detail::expect_mixing("fit_decay", m, m.rows(), m.rows(), "m");
  detail::expect_finite("fit_decay", "m", m, Order::kCausal);
  const Index blocks = m.rows();
  return detail::solve_decay<
      std::remove_const_t<A>>(terms, blocks, [&](const std::vector<double>& decays) {
    const Index count = static_cast<Index>(decays.size());
    NormalEquations p{Matrix<double>::Zero(count, count), std::vector<double>(decays.size()), {}};
    for (Index distance = 0; distance < blocks; ++distance) {
      const auto power = [&](Index l) {
        return std::pow(decays[static_cast<std::size_t>(l)], static_cast<double>(distance));
      };
      double sum = 0;  // sum of the coefficients at this distance
      for (Index i = distance; i < blocks; ++i) sum += double{m(i, i - distance)};
      for (Index l = 0; l < count; ++l) {
        p.right[static_cast<std::size_t>(l)] += power(l) * sum;
        for (Index k = 0; k < count; ++k) {
          p.gram(l, k) += power(l) * power(k) * static_cast<double>(blocks - distance);
        }
      }
    }
    return p;
  });
}

}  // namespace MHLA_TARGET
}  // namespace mhla
