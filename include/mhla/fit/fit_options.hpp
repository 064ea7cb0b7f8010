#pragma once

/// \file
/// Options and results of fits of mixing matrices (mixing_fit.hpp).

#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/mixing_view.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Constraints and ridge of the rows of a fitted matrix.
template <Accumulator A>
struct FitOptions {
  /// Weight of |m_i - prior_i|^2, in mean diagonal elements of the row's Gram matrix.
  double ridge = 0;
  MixingView<const A> prior{};  ///< target of the ridge, such as locality; absent: 0
  Index nonzeros = 0;           ///< largest number of nonzero coefficients per row; 0: no limit
  /// Rows sum to 1. Where a normaliser divides, it cancels their factor: rows are fitted without
  /// this constraint, and then divided by their sums. The prior counts up to a factor, too.
  bool sum_to_one = false;
};

/// Distance of outputs from their targets: the root of the sum of squared differences over that of
/// the squared targets. Infinite where targets are 0 and outputs are not.
///
/// Rounding moves it by up to 1e-7 r. The ratio r has sum_b |m_ib| |y_tb| + |target_t| in place of
/// o_t - target_t; y_tb is what query t reads of block b, divided by its denominator. The level is
/// 1e-7 for coefficients of about 1. It grows with the largest coefficient: 1e-2 for 1e5.
struct FitResidual {
  std::vector<double> of_block{};  ///< [Mq], 0 where no target was seen
  double total = 0;
  Index left_out = 0;  ///< queries not counted, since their denominator is 0
};

/// A least-squares problem of coefficients x that all rows of a matrix share (nonnegative.hpp).
struct NormalEquations {
  Matrix<double> gram{};          ///< [L,L]
  std::vector<double> right{};    ///< [L]
  std::vector<double> weights{};  ///< [L] of the sum of denominators; empty if none divides
};

}  // namespace MHLA_TARGET
}  // namespace mhla
