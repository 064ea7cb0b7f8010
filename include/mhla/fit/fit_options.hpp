#pragma once

/// \file
/// What fits of mixing matrices take and return (mixing_fit.hpp).

#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/mixing_view.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// What rows of a fitted matrix must fulfil besides.
template <Accumulator A>
struct FitOptions {
  /// Weight of |m_i - prior_i|^2, in mean diagonal elements of the row's Gram matrix.
  double ridge = 0;
  MixingView<const A> prior{};  ///< what the ridge pulls to, such as locality; absent: 0
  Index nonzeros = 0;           ///< most coefficients of a row that are not 0; 0 for any number
  bool sum_to_one = false;      ///< rows sum to 1, whatever their denominators
};

/// How far outputs are from their targets: the root of the sum of squares over that of the targets.
/// Infinite where targets are 0 and outputs are not.
///
/// Rounding moves it by up to 1e-7 r, r being the same ratio for sum_b |m_ib| |y_tb| + |target_t|
/// in the place of o_t - target_t. Here y_tb is what query t reads of block b, over its
/// denominator. The level is thus 1e-7 for coefficients of about 1, and grows with the largest:
/// 1e-2 for 1e5.
struct FitResidual {
  std::vector<double> of_block{};  ///< [Mq], 0 where no target was seen
  double total = 0;
  Index left_out = 0;  ///< queries whose denominator is 0, which did not count
};

/// A least-squares problem of coefficients x that all rows of a matrix share (nonnegative.hpp).
struct NormalEquations {
  Matrix<double> gram{};        ///< [L,L]
  std::vector<double> right{};  ///< [L]
  std::vector<double>
      weights{};  ///< [L] of the sum that denominators fix; empty where none divides
};

}  // namespace MHLA_TARGET
}  // namespace mhla
