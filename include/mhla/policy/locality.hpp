#pragma once

/// \file
/// Stage 4 of 5: initial mixing matrices that favour near blocks.
///
/// Let dist be the Euclidean distance between the centres of a query block and a key block, in key
/// blocks along each axis. Let reach be the largest distance:
///
///     linear      1 - dist / reach
///     cos         cos(dist / reach * pi / 4)
///     exp         exp(-dist / sigma)
///     gaussian    exp(-dist^2 / (2 (reach / 3)^2))
///     local       1 where dist <= threshold, otherwise 0
///
/// The paper takes `reach` per row and divides each row by its sum. The released code takes `reach`
/// over the matrix and divides each column by its sum, except for gaussian. Both have one grid of
/// blocks. For cross-attention, the grids of query blocks and of key blocks cover the same extent.
/// Source: arXiv:2601.07832, section 4.2; released vision and video layers.

#include <cmath>
#include <concepts>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Decrease of a coefficient with distance.
enum class Falloff { kLinear, kCos, kExp, kGaussian, kLocal };

/// Rows or columns that sum to one, and the range of the largest distance.
enum class SumToOne {
  kRows,     ///< the paper: largest distance of each row, rows sum to 1
  kColumns,  ///< released code: largest distance of the matrix, columns sum to 1
  kNothing,  ///< largest distance of the matrix, values as they are
};

/// Options of locality().
struct LocalityOptions {
  Falloff falloff = Falloff::kLinear;
  SumToOne sum_to_one = SumToOne::kRows;
  double sigma = 3;        ///< for kExp, in key blocks
  double threshold = 1.5;  ///< for kLocal, in key blocks; 1.5 includes diagonal neighbours
};

/// Returns the initial [M,M] mixing matrix of a sequence, image or video of blocks in raster order.
/// \param blocks  blocks along each axis: GridShape(M), GridShape(4, 4), Grid::block_grid(), ...
/// \throws option_error for a size below 1, sigma <= 0 or a threshold < 0. Cost: M^2.
template <Accumulator A = float>
MixingMatrix<A> locality(GridShape blocks, const LocalityOptions& options = {});

/// Returns the initial [Mq,Mk] mixing matrix of cross-attention between grids of blocks that cover
/// the same extent, such as an image in two resolutions. Block i of n along an axis has its centre
/// at (i + 1/2) / n of that extent. Equal grids give the matrix above. If all blocks of a row (or
/// column) that should sum to 1 are equally far, kLinear gives equal weights.
/// \throws option_error as above, and if sigma or threshold makes such a row (or column) all 0.
template <Accumulator A = float>
MixingMatrix<A> locality(GridShape queries, GridShape keys, const LocalityOptions& options = {});

/// Returns the matrix above for the blocks of one grid of tokens, or of two.
template <Accumulator A = float, std::same_as<Grid> G>
MixingMatrix<A> locality(const G& blocks, const LocalityOptions& options = {}) {
  return locality<A>(blocks.block_grid(), options);
}
template <Accumulator A = float, std::same_as<Grid> G>
MixingMatrix<A> locality(const G& queries, const G& keys, const LocalityOptions& options = {}) {
  return locality<A>(queries.block_grid(), keys.block_grid(), options);
}

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Distances between the centres of blocks, in units of key blocks.   // [Mq,Mk]
inline Matrix<double> block_distances(GridShape queries, GridShape keys) {
  const auto place = [](GridShape grid, Index b, int axis) {
    const Index inner = axis == 2 ? 1 : axis == 1 ? grid[2] : grid[1] * grid[2];
    return b / inner % grid[axis];
  };
  Matrix<double> distance(queries[0] * queries[1] * queries[2], keys[0] * keys[1] * keys[2]);
  for (Index i = 0; i < distance.rows(); ++i) {
    for (Index b = 0; b < distance.cols(); ++b) {
      double squared = 0;
      for (int axis = 0; axis < 3; ++axis) {
        // (i + 1/2) nk / nq - (b + 1/2) in integers: rounded once, exact for nq = nk.
        const Index nq = queries[axis], nk = keys[axis];
        const Index halves =
            (2 * place(queries, i, axis) + 1) * nk - (2 * place(keys, b, axis) + 1) * nq;
        const double along = static_cast<double>(halves) / static_cast<double>(2 * nq);
        squared += along * along;
      }
      distance(i, b) = std::sqrt(squared);
    }
  }
  return distance;
}

/// Coefficient of two blocks at distance `dist`, before normalisation.
inline double locality_weight(double dist, double reach, const LocalityOptions& options) {
  constexpr double kPi = 3.14159265358979323846;
  const double share = reach > 0 ? dist / reach : 0;  // 0 for a single block
  switch (options.falloff) {
    case Falloff::kLinear:
      return 1 - share;
    case Falloff::kCos:
      return std::cos(share * kPi / 4);
    case Falloff::kExp:
      return std::exp(-dist / options.sigma);
    case Falloff::kGaussian:
      return std::exp(-share * share * 9 / 2);
    case Falloff::kLocal:
      return dist <= options.threshold ? 1 : 0;
  }
  return 0;
}

/// Coefficients before normalisation, in double precision.   // [Mq,Mk]
inline Matrix<double> locality_weights(GridShape queries, GridShape keys,
                                       const LocalityOptions& options) {
  const Matrix<double> distance = block_distances(queries, keys);
  const double farthest = distance.maxCoeff();
  Matrix<double> weights(distance.rows(), distance.cols());
  for (Index i = 0; i < weights.rows(); ++i) {
    const bool by_row = options.sum_to_one == SumToOne::kRows;
    const double reach = by_row ? distance.row(i).maxCoeff() : farthest;
    for (Index b = 0; b < weights.cols(); ++b) {
      weights(i, b) = locality_weight(distance(i, b), reach, options);
    }
  }
  return weights;
}

/// Divides each row by its sum.
/// \param what  the blocks that rows belong to, for errors
inline void divide_by_row_sums(MatrixView<double> m, const char* what,
                               const LocalityOptions& options) {
  for (Index i = 0; i < m.rows; ++i) {
    double sum = 0;
    for (Index b = 0; b < m.cols; ++b) sum += m(i, b);
    if (sum == 0 && options.falloff != Falloff::kLinear) {
      fail_option("locality", "options",
                  "have sigma " + std::to_string(options.sigma) + " and threshold " +
                      std::to_string(options.threshold) + ", so that all weights of " + what +
                      " block " + std::to_string(i) + " are 0",
                  "a larger sigma or threshold");
    }
    for (Index b = 0; b < m.cols; ++b) {
      m(i, b) = sum == 0 ? 1 / static_cast<double>(m.cols) : m(i, b) / sum;
    }
  }
}

}  // namespace detail

template <Accumulator A>
MixingMatrix<A> locality(GridShape blocks, const LocalityOptions& options) {
  detail::expect_grid("locality", "blocks", blocks);
  return locality<A>(blocks, blocks, options);
}

template <Accumulator A>
MixingMatrix<A> locality(GridShape queries, GridShape keys, const LocalityOptions& options) {
  detail::expect_grid("locality", "queries", queries);
  detail::expect_grid("locality", "keys", keys);
  if (!(options.sigma > 0) || !(options.threshold >= 0)) {
    detail::fail_option("locality", "options",
                        "have sigma " + std::to_string(options.sigma) + " and threshold " +
                            std::to_string(options.threshold),
                        "sigma > 0 and threshold >= 0");
  }
  Matrix<double> weights = detail::locality_weights(queries, keys, options);
  const MatrixView<double> view(weights);
  if (options.sum_to_one == SumToOne::kRows) {
    detail::divide_by_row_sums(view, "query", options);
  } else if (options.sum_to_one == SumToOne::kColumns) {
    detail::divide_by_row_sums(view.transposed(), "key", options);
  }
  return MixingMatrix<A>(weights);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
