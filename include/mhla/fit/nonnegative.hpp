#pragma once

/// \file
/// Nonnegative least squares from the Gram matrix alone: x >= 0 that minimises
///
///     |A x - f|^2 - |f|^2 = x^T G x - 2 c^T x           G = A^T A [n,n], c = A^T f [n]
///
/// optionally with w^T x = 1 for given weights w, and with few nonzero entries. It is an active-set
/// method: entries are freed one by one, always the one along which the residual falls fastest. All
/// other entries stay 0.
/// Cost: P^2 n for P nonzeros of which few were freed in vain; memory n^2. A limit on nonzeros
/// costs about as much again, and P^3 / 3 for each removal after which another entry returns.
/// Source: Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23; from G as Bro and
/// de Jong, 1997.

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/fit/active_set.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Constraints of nonnegative least squares, besides x >= 0.
struct NonnegativeOptions {
  /// Weights w of the constraint w^T x = 1, [n]: all 1 for entries that sum to 1; empty: any x.
  std::span<const double> weights{};
  /// Largest number of nonzero entries; 0: no limit. From the solution without a limit, the entry
  /// that costs least is removed, again and again. The result need not be the best choice.
  Index nonzeros = 0;
};

/// Returns x [n]. If several x are equally good, as with equal columns of A, it is any of these.
/// \param gram   [n,n], symmetric; positive semidefinite but for rounding
/// \param right  [n]
/// \throws shape_error if sizes differ; option_error if a number is not finite, if nonzeros < 0, or
///     if no weight is above 0, so that no x has the sum 1.
std::vector<double> nonnegative_least_squares(MatrixView<const double> gram,
                                              std::span<const double> right,
                                              const NonnegativeOptions& options = {});

// ------------------------------------------------------------------------------------------------

inline std::vector<double> nonnegative_least_squares(MatrixView<const double> gram,
                                                     std::span<const double> right,
                                                     const NonnegativeOptions& options) {
  constexpr const char* kName = "nonnegative_least_squares";
  const Index n = static_cast<Index>(right.size());
  detail::expect_shape(kName, "gram", gram, n, n,
                       " (an entry of the right-hand side for each row)");
  if (options.nonzeros < 0) {
    detail::fail_option(kName, "nonzeros", "is " + std::to_string(options.nonzeros), "at least 0");
  }
  if (!options.weights.empty()) {
    const Index weights = static_cast<Index>(options.weights.size());
    if (weights != n) {
      detail::fail_shape(kName, "weights", "has " + std::to_string(weights) + " entries",
                         "none or " + std::to_string(n));
    }
    if (!(*std::max_element(options.weights.begin(), options.weights.end()) > 0)) {
      detail::fail_option(kName, "weights", "has no entry above 0", "at least one above 0");
    }
  }
  const auto expect_finite = [](const char* argument, double x) {
    if (!std::isfinite(x)) {
      detail::fail_option(kName, argument, "holds " + std::to_string(x), "finite numbers");
    }
  };
  for (const double w : options.weights) expect_finite("weights", w);
  for (Index i = 0; i < n; ++i) {
    expect_finite("right", right[static_cast<std::size_t>(i)]);
    for (Index j = 0; j < n; ++j) expect_finite("gram", gram(i, j));
  }
  detail::NonnegativeSolver solver(gram, right, options.weights);
  solver.solve();
  if (options.nonzeros > 0) solver.prune(options.nonzeros);
  return solver.x();
}

}  // namespace MHLA_TARGET
}  // namespace mhla
