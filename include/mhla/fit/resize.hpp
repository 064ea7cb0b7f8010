#pragma once

/// \file
/// A mixing matrix for another grid of blocks than the trained one, such as another resolution. It
/// is a nonnegative function kappa of the distance d_ib between the centres of blocks:
///
///     m_ib = r_i kappa(d_ib) / sum_b' kappa(d_ib')     rows that sum to r_i (SumToOne::kRows)
///     m_ib = c_b kappa(d_ib) / sum_i' kappa(d_i'b)     columns that sum to c_b (kColumns)
///     m_ib = kappa(d_ib)                               as they are (kNothing)
///
/// kappa comes from nonnegative least squares over all coefficients (distance_kernel.hpp), or over
/// the data of a fit. A border block has fewer neighbours, so with equal row sums its coefficients
/// are larger by sums of kappa. Each round takes these sums from the kernel of the round before. On
/// the new grid all rows (or columns) sum to the mean of the trained sums. With a normaliser that
/// divides, a factor of a row has no effect. A row for which kappa is 0 is 0.
///
/// Measured |difference| / |m| for matrices of locality() on the same grid: 1e-4 for exp and
/// gaussian, 0.005 for linear, cos and local. For exp, which any grid can have, from 4x4 to 8x8
/// blocks: 0.015 with blocks of the same size, 0.001 with the same extent. The default of
/// locality() takes a largest distance per row, and its matrix is no function of distance (residual
/// 0.12).
/// Cost: 10 rounds of K S^2 and of a nonnegative least-squares problem, with K distinct distances
/// and S functions. S is below 300 up to 1024 blocks. The new matrix costs at most S Mq Mk.

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/fit/distance_kernel.hpp"
#include "mhla/fit/mixing_fit.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/locality.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Quantity that is equal in both grids.
enum class DistanceUnit {
  kExtent,  ///< the extent along each axis: the same image in more or fewer blocks
  kBlock,   ///< the size of a key block: a larger or smaller image
};

/// Options of resize().
struct ResizeOptions {
  DistanceUnit unit = DistanceUnit::kExtent;
  SumToOne sum_to_one = SumToOne::kRows;  ///< lines with given sums, 1 or any other number
};

/// A matrix for another grid, and the distance of the trained matrix from a function of distance.
template <Accumulator A>
struct ResizedMixing {
  MixingMatrix<A> mixing;
  double residual = 0;  ///< |m - its kernel| / |m|: near 0 for a function of distance
};

/// Returns the matrix [M',M'] of the blocks `to` for a matrix m [M,M] of the blocks `from`.
/// \param from, to  blocks along each axis, in raster order: GridShape(M), Grid::block_grid(), ...
/// \throws shape_error unless m is a matrix of `from`; option_error for a size below 1 and for
///     coefficients that are not finite.
template <class A>
ResizedMixing<std::remove_const_t<A>> resize(const MixingView<A>& m, GridShape from, GridShape to,
                                             const ResizeOptions& options = {});

/// Resizes the matrix of cross-attention [Mq,Mk]; grids of queries and keys cover the same extent.
template <class A>
ResizedMixing<std::remove_const_t<A>> resize(const MixingView<A>& m, GridShape from_queries,
                                             GridShape from_keys, GridShape to_queries,
                                             GridShape to_keys, const ResizeOptions& options = {});

/// Resizes by the data of a fit. The result is the kernel matrix that gives the targets best,
/// instead of the kernel of fit.solve(). Its rows (or columns) have the sums of fit.start(); its
/// residual is FitResidual::total. With noisy data it is more accurate, as blocks at equal distance
/// share their data.
/// Cost: 10 rounds of MixingFit::normal_equations with S functions.
/// \throws shape_error unless the fit is of `from`; option_error as above, and unless the fit is
///     bidirectional and starts from all coefficients; as MixingFit::normal_equations.
template <Accumulator A>
ResizedMixing<A> resize(const MixingFit<A>& fit, GridShape from_queries, GridShape from_keys,
                        GridShape to_queries, GridShape to_keys, const ResizeOptions& options = {});
template <Accumulator A>
ResizedMixing<A> resize(const MixingFit<A>& fit, GridShape from, GridShape to,
                        const ResizeOptions& options = {}) {
  return resize(fit, from, from, to, to, options);
}

template <Accumulator A>
ResizedMixing<A> resize(const MixingMatrix<A>& m, GridShape from, GridShape to,
                        const ResizeOptions& options = {}) {
  return resize(m.view(), from, to, options);
}
template <Accumulator A>
ResizedMixing<A> resize(const MixingMatrix<A>& m, GridShape from_queries, GridShape from_keys,
                        GridShape to_queries, GridShape to_keys,
                        const ResizeOptions& options = {}) {
  return resize(m.view(), from_queries, from_keys, to_queries, to_keys, options);
}

// ------------------------------------------------------------------------------------------------

namespace detail {

/// The grids of query blocks and of key blocks.
struct BlockGrids {
  GridShape queries, keys;
};

/// Throws unless m is a matrix of the grids `from`.
template <class A>
void expect_grids(const MixingView<A>& m, const BlockGrids& from, const BlockGrids& to) {
  for (const GridShape& grid : {from.queries, from.keys}) expect_grid("resize", "from", grid);
  for (const GridShape& grid : {to.queries, to.keys}) expect_grid("resize", "to", grid);
  const auto blocks = [](const GridShape& grid) { return grid[0] * grid[1] * grid[2]; };
  expect_mixing("resize", m, blocks(from.queries), blocks(from.keys), "m");
}

/// Returns the coefficients of m. Throws unless all are finite.
template <class A>
Matrix<double> finite(const MixingView<A>& m) {
  expect_finite("resize", "m", m, Order::kBidirectional);
  return m.dense().template cast<double>();
}

/// Distances between the centres of blocks, where a key block is `unit` long along each axis.
inline Matrix<double> distances_in(const std::array<double, 3>& unit, const BlockGrids& grids) {
  Matrix<double> squares(1, 1);
  squares(0, 0) = 0;
  for (int axis = 0; axis < 3; ++axis) {  // raster order: each axis is inside those before it
    const Index nq = grids.queries[axis], nk = grids.keys[axis];
    const Matrix<double> along = block_distances(nq, nk);
    Matrix<double> next(squares.rows() * nq, squares.cols() * nk);
    for (Index i = 0; i < next.rows(); ++i) {
      for (Index b = 0; b < next.cols(); ++b) {
        const double length = unit[static_cast<std::size_t>(axis)] * along(i % nq, b % nk);
        next(i, b) = squares(i / nq, b / nk) + length * length;
      }
    }
    squares = std::move(next);
  }
  for (Index n = 0; n < squares.size(); ++n) squares.data()[n] = std::sqrt(squares.data()[n]);
  return squares;
}

/// Index of the row or column whose given sum includes coefficient [i, b]; 0 for kNothing.
inline std::size_t line_of(SumToOne which, Index i, Index b) {
  return static_cast<std::size_t>(which == SumToOne::kRows      ? i
                                  : which == SumToOne::kColumns ? b
                                                                : 0);
}

inline std::size_t lines_of(SumToOne which, const Matrix<double>& m) {
  return line_of(which, m.rows() - 1, m.cols() - 1) + 1;
}

/// Sums of rows or columns, at least 0, as the sums of a kernel are.
inline std::vector<double> line_sums(const Matrix<double>& m, SumToOne which) {
  std::vector<double> sums(lines_of(which, m));
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index b = 0; b < m.cols(); ++b) sums[line_of(which, i, b)] += m(i, b);
  }
  for (double& sum : sums) sum = std::max(sum, 0.0);
  return sums;
}

/// Factors that give rows (or columns) of kappa these sums.                              // [Mq,Mk]
inline Matrix<double> kernel_factors(const Matrix<double>& kappa, SumToOne which,
                                     const std::vector<double>& sums) {
  const std::vector<double> now = line_sums(kappa, which);
  Matrix<double> factors(kappa.rows(), kappa.cols());
  for (Index i = 0; i < kappa.rows(); ++i) {
    for (Index b = 0; b < kappa.cols(); ++b) {
      const std::size_t line = line_of(which, i, b);
      factors(i, b) = which == SumToOne::kNothing ? 1 : now[line] > 0 ? sums[line] / now[line] : 0;
    }
  }
  return factors;
}

/// Returns the matrix of a kernel, with rows (or columns) that have these sums.
inline Matrix<double> kernel_matrix(const DistanceKernel& kernel, const Matrix<double>& distances,
                                    SumToOne which, const std::vector<double>& sums) {
  const Matrix<double> kappa = kernel.at(distances);
  Matrix<double> m = kernel_factors(kappa, which, sums);
  for (Index n = 0; n < m.size(); ++n) m.data()[n] *= kappa.data()[n];
  return m;
}

/// \param fit       fit(kernel, distances, factors) fits the weights in factor_ib kappa(d_ib)
/// \param residual  residual(matrix) is the distance of a kernel matrix from its data
template <Accumulator A, class Fit, class Residual>
ResizedMixing<A> resize_by(const Matrix<double>& m, const BlockGrids& from, const BlockGrids& to,
                           const ResizeOptions& options, Fit&& fit, Residual&& residual) {
  constexpr int kRounds = 10;  // each 2 to 100 times nearer to the final kernel
  const SumToOne which = options.sum_to_one;
  const std::vector<double> sums = line_sums(m, which);
  const Matrix<double> distances = distances_in({1, 1, 1}, from);
  DistanceKernel kernel(distances);
  for (int round = 0; round < (which == SumToOne::kNothing ? 1 : kRounds); ++round) {
    fit(kernel, distances, kernel_factors(kernel.at(distances), which, sums));
  }

  std::array<double, 3> unit{1, 1, 1};  // size of a new key block in trained key blocks
  for (std::size_t axis = 0; axis < 3 && options.unit == DistanceUnit::kExtent; ++axis) {
    unit[axis] =
        static_cast<double>(from.keys.sizes[axis]) / static_cast<double>(to.keys.sizes[axis]);
  }
  const Matrix<double> resized = distances_in(unit, to);
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  const std::vector<double> mean(lines_of(which, resized), sum / static_cast<double>(sums.size()));
  return {.mixing = MixingMatrix<A>(kernel_matrix(kernel, resized, which, mean)),
          .residual = residual(kernel_matrix(kernel, distances, which, sums))};
}

}  // namespace detail

template <class A>
ResizedMixing<std::remove_const_t<A>> resize(const MixingView<A>& m, GridShape from_queries,
                                             GridShape from_keys, GridShape to_queries,
                                             GridShape to_keys, const ResizeOptions& options) {
  const detail::BlockGrids from{from_queries, from_keys}, to{to_queries, to_keys};
  detail::expect_grids(m, from, to);
  const Matrix<double> trained = detail::finite(m);
  return detail::resize_by<std::remove_const_t<A>>(
      trained, from, to, options,
      [&](detail::DistanceKernel& kernel, const Matrix<double>& distances,
          const Matrix<double>& factors) { kernel.fit(trained, factors, distances); },
      [&](const Matrix<double>& fitted) {
        const double left = (fitted - trained).norm();
        return left > 0 ? left / trained.norm() : 0;
      });
}

template <class A>
ResizedMixing<std::remove_const_t<A>> resize(const MixingView<A>& m, GridShape from, GridShape to,
                                             const ResizeOptions& options) {
  return resize(m, from, from, to, to, options);
}

template <Accumulator A>
ResizedMixing<A> resize(const MixingFit<A>& fit, GridShape from_queries, GridShape from_keys,
                        GridShape to_queries, GridShape to_keys, const ResizeOptions& options) {
  const detail::BlockGrids from{from_queries, from_keys}, to{to_queries, to_keys};
  const MixingView<const A> start = fit.start();
  detail::expect_grids(start, from, to);
  Index coefficients = 0;
  start.for_each([&](const A&) { ++coefficients; });
  if (fit.order() == Order::kCausal || coefficients < start.rows() * start.cols()) {
    detail::fail_option("resize", "fit", "is causal or starts from some coefficients alone",
                        "a bidirectional one of all coefficients");
  }
  return detail::resize_by<A>(
      detail::finite(start), from, to, options,
      [&](detail::DistanceKernel& kernel, const Matrix<double>& distances,
          const Matrix<double>& factors) {
        kernel.solve(fit.normal_equations(kernel.functions(), [&](Index l, Index i, Index b) {
          return factors(i, b) * kernel.function(l, distances(i, b));
        }));
      },
      [&](const Matrix<double>& fitted) { return fit.residual(MixingMatrix<A>(fitted)).total; });
}

}  // namespace MHLA_TARGET
}  // namespace mhla
