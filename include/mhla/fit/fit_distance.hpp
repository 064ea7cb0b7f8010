#pragma once

/// \file
/// A table over offsets of blocks (policy/distance_mixing.hpp) by least squares. The fit is to the
/// coefficients of learned matrices, or to targets, weighted with what queries read (MixingFit):
///
///     f(o) = mean of the m_ib of offset o          a table of coefficients as they are
///     m_ib = f(o_ib) / sum_b' f(o_ib')             rows that sum to 1
///
/// Rows that sum to 1 are fitted in rounds, each of which takes the sums from the table before, as
/// resize() does. Offsets beyond the table count as its border. An offset that no coefficient has
/// gets 0.
/// Cost: 100 rounds of M^2 for coefficients. For targets, 10 rounds of MixingFit::normal_equations
/// with as many functions as offsets. Coefficients as they are take one round.

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/fit/check.hpp"
#include "mhla/fit/mixing_fit.hpp"
#include "mhla/fit/nonnegative.hpp"
#include "mhla/policy/distance_mixing.hpp"
#include "mhla/policy/mixing_constraints.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A fitted table, and the distance of the learned matrices from it.
template <Accumulator A>
struct FittedDistance {
  DistanceMixing<A> mixing;
  double residual = 0;  ///< |m - its coefficients| / |m|; of a MixingFit: FitResidual::total
};

/// Fits a table to a matrix [M,M], or one table per head to matrices [H,M,M].
/// \param blocks   blocks along each axis, in raster order: GridShape(M), Grid::block_grid(), ...
/// \param offsets  odd numbers of offsets, at most 2 blocks - 1 along each axis
/// \param rows_sum_to_one  fits the rows of m divided by their sums, as does the residual
/// \throws shape_error unless m is [M,M] or [H,M,M].
/// \throws option_error for more offsets, and for coefficients that are not finite.
/// \throws option_error if rows should sum to 1, and a coefficient is negative, or a sum is 0 or
///     not finite.
template <class A>
FittedDistance<std::remove_const_t<A>> fit_distance(const MixingView<A>& m, GridShape blocks,
                                                    GridShape offsets, bool rows_sum_to_one = true);
template <Accumulator A>
FittedDistance<A> fit_distance(const MixingMatrix<A>& m, GridShape blocks, GridShape offsets,
                               bool rows_sum_to_one = true) {
  return fit_distance(m.view(), blocks, offsets, rows_sum_to_one);
}

/// Fits a table of nonnegative numbers to the targets of a fit.
/// \throws as above, and option_error unless the fit starts from all coefficients that its form
///     reads; as MixingFit::normal_equations.
template <Accumulator A>
FittedDistance<A> fit_distance(const MixingFit<A>& fit, GridShape blocks, GridShape offsets,
                               bool rows_sum_to_one = true);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Throws unless a table has no more offsets than blocks of a grid have.
inline void expect_offsets_of(GridShape blocks, GridShape offsets) {
  expect_grid("fit_distance", "blocks", blocks);
  for (int axis = 0; axis < 3; ++axis) {
    if (offsets[axis] / 2 < blocks[axis]) continue;
    fail_option("fit_distance", "offsets", "is " + grid_text(offsets),
                "at most 2 b - 1 along axes of b blocks, which are " + grid_text(blocks));
  }
}

/// Throws for a negative coefficient: rounds with quotients of sums may not end.
template <class A>
void expect_not_negative_in(const char* function, const MixingView<A>& m) {
  m.for_each([function](A c) {
    if (c >= 0) return;
    fail_option(function, "m", "holds " + std::to_string(c),
                "nonnegative coefficients where rows sum to 1");
  });
}

/// Fits one table in rounds.
/// \param pattern  the coefficients
/// \param rounds   for rows that sum to 1
/// \param solve    solve(place, factors) returns the table f for which factor_i f(place(i, b)) is
///     nearest to the data
template <Accumulator A, class Solve>
DistanceMixing<A> fit_offsets(const Pattern& pattern, GridShape blocks, GridShape offsets,
                              bool rows_sum_to_one, int rounds, const Solve& solve) {
  const DistanceMixing<A> shape(offsets, 1, rows_sum_to_one);
  const OffsetPlaces<const A> place(shape.view(), blocks);
  std::vector<double> factors(static_cast<std::size_t>(pattern.rows()), 1), table;
  for (int round = 0; round < (rows_sum_to_one ? rounds : 1); ++round) {
    table = solve(place, factors);
    for (Index i = 0; i < pattern.rows() && rows_sum_to_one; ++i) {
      double sum = 0;
      pattern.for_each_in_row(
          i, [&](Index b, Index) { sum += table[static_cast<std::size_t>(place(i, b))]; });
      factors[static_cast<std::size_t>(i)] = sum == 0 ? 0 : 1 / sum;
    }
  }
  DistanceMixing<A> f = shape;
  std::transform(table.begin(), table.end(), f.storage().begin(),
                 [](double x) { return static_cast<A>(x); });
  return f;
}

}  // namespace detail

template <class A>
FittedDistance<std::remove_const_t<A>> fit_distance(const MixingView<A>& m, GridShape blocks,
                                                    GridShape offsets, bool rows_sum_to_one) {
  using T = std::remove_const_t<A>;
  constexpr const char* kName = "fit_distance";
  detail::expect_offsets_of(blocks, offsets);
  const Index count = blocks[0] * blocks[1] * blocks[2];
  detail::expect_mixing(kName, m, count, count, "m");
  if (m.sequences() > 1) {
    detail::fail_shape(kName, "m", "has " + detail::matrices_text(m) + " matrices",
                       "one, or one per head");
  }
  FittedDistance<T> fitted{DistanceMixing<T>(offsets, m.heads(), rows_sum_to_one)};
  double left = 0, all = 0;  // squares
  for (Index h = 0; h < m.heads(); ++h) {
    detail::expect_finite(kName, "m", m.of_head(h), Order::kBidirectional);
    MixingMatrix<T> target(m.of_head(h));
    if (rows_sum_to_one) {
      detail::expect_not_negative_in(kName, target.view());
      detail::normalize_rows(kName, "m", target.view());
    }
    const DistanceMixing<T> f = detail::fit_offsets<T>(
        m.pattern(), blocks, offsets, rows_sum_to_one, 100,
        [&](const auto& place, const std::vector<double>& factors) {
          std::vector<double> table(static_cast<std::size_t>(fitted.mixing.view().size()));
          std::vector<double> squares = table;
          target.view().for_each_place([&](Index, Index i, Index b, T c) {
            const auto at = static_cast<std::size_t>(place(i, b));
            const double factor = factors[static_cast<std::size_t>(i)];
            table[at] += factor * double{c};
            squares[at] += factor * factor;
          });
          for (std::size_t n = 0; n < table.size(); ++n) {
            table[n] = squares[n] > 0 ? table[n] / squares[n] : 0;
          }
          return table;
        });
    std::copy(f.storage().begin(), f.storage().end(),
              fitted.mixing.storage().begin() + h * fitted.mixing.view().size());
    const MixingMatrix<T> fit = distance_matrix(f, blocks, m.pattern());
    target.view().for_each_place([&](Index, Index i, Index b, T c) {
      const double apart = double{c} - double{fit(i, b)};
      left += apart * apart, all += double{c} * double{c};
    });
  }
  fitted.residual = left > 0 ? std::sqrt(left / all) : 0;
  return fitted;
}

template <Accumulator A>
FittedDistance<A> fit_distance(const MixingFit<A>& fit, GridShape blocks, GridShape offsets,
                               bool rows_sum_to_one) {
  constexpr const char* kName = "fit_distance";
  detail::expect_offsets_of(blocks, offsets);
  const Index count = blocks[0] * blocks[1] * blocks[2];
  detail::expect_mixing(kName, fit.start().view(), count, count, "fit");
  const bool causal = fit.order() == Order::kCausal;
  for (Index i = 0; i < count; ++i) {
    if (std::ssize(fit.columns(i)) < (causal ? i + 1 : count)) {
      detail::fail_option(kName, "fit", "starts from a band or lists of blocks",
                          "all coefficients");
    }
  }
  const Pattern pattern(count, count, count, causal ? 0 : count);
  FittedDistance<A> fitted{detail::fit_offsets<A>(
      pattern, blocks, offsets, rows_sum_to_one, 10,
      [&](const auto& place, const std::vector<double>& factors) {
        const Index size = offsets[0] * offsets[1] * offsets[2];
        const NormalEquations p = fit.normal_equations(size, [&](Index l, Index i, Index b) {
          return place(i, b) == l ? factors[static_cast<std::size_t>(i)] : 0;
        });
        return nonnegative_least_squares(p.gram, p.right, {.weights = p.weights});
      })};
  fitted.residual = fit.residual(distance_matrix(fitted.mixing, blocks, pattern)).total;
  return fitted;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
