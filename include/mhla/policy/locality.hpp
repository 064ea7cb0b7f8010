#pragma once

/// \file
/// Stage 4 of 5: initial mixing matrices that favour near blocks.
///
/// With dist the Euclidean distance between blocks (in blocks) and far the largest distance,
///
///     linear      1 - dist / far
///     cos         cos(dist / far * pi / 4)
///     exp         exp(-dist / sigma)
///     gaussian    exp(-dist^2 / (2 (far / 3)^2))
///     local       1 where dist <= threshold, otherwise 0
///
/// The paper takes `far` in each row and divides each row by its sum; the released code takes it
/// over the matrix and divides each column by its sum (but not its gaussian).
/// Source: arXiv:2601.07832, section 4.2; released vision and video layers.

#include <cmath>
#include <concepts>

#include "mhla/core/arch.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// How a coefficient falls with distance.
enum class Falloff { kLinear, kCos, kExp, kGaussian, kLocal };

/// What sums to one, and where the largest distance is taken.
enum class SumToOne {
  kRows,     ///< the paper: largest distance of each row, rows sum to 1
  kColumns,  ///< released code: largest distance of the matrix, columns sum to 1
  kNothing,  ///< largest distance of the matrix, values as they are
};

struct LocalityOptions {
  Falloff falloff = Falloff::kLinear;
  SumToOne sum_to_one = SumToOne::kRows;
  double sigma = 3;        ///< of kExp, in blocks
  double threshold = 1.5;  ///< of kLocal, in blocks; 1.5 includes diagonal neighbours
};

/// Returns the initial [M,M] mixing matrix of a sequence, image or video of blocks in raster order.
/// \param blocks  blocks along each axis: GridShape(M), GridShape(4, 4), Grid::block_grid(), ...
/// \throws option_error for a size below 1, sigma <= 0 or a threshold < 0. Cost: M^2.
template <Accumulator A = float>
MixingMatrix<A> locality(GridShape blocks, const LocalityOptions& options = {});

/// The same for the blocks of a grid of tokens.
template <Accumulator A = float, std::same_as<Grid> G>
MixingMatrix<A> locality(const G& blocks, const LocalityOptions& options = {}) {
  return locality<A>(blocks.block_grid(), options);
}

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Coefficients before normalisation, in double.   // [M,M]
inline Matrix<double> locality_weights(GridShape blocks, const LocalityOptions& options) {
  const Index m = blocks[0] * blocks[1] * blocks[2];
  const auto position = [&blocks](Index b, int axis) {
    const Index inner = axis == 2 ? 1 : axis == 1 ? blocks[2] : blocks[1] * blocks[2];
    return static_cast<double>(b / inner % blocks[axis]);
  };
  Matrix<double> distance(m, m);
  for (Index i = 0; i < m; ++i) {
    for (Index b = 0; b < m; ++b) {
      double squared = 0;
      for (int axis = 0; axis < 3; ++axis) {
        const double along = position(i, axis) - position(b, axis);
        squared += along * along;
      }
      distance(i, b) = std::sqrt(squared);
    }
  }
  const auto largest = [&distance](Index first, Index rows) {
    double most = 0;
    for (Index i = first; i < first + rows; ++i) {
      for (Index b = 0; b < distance.cols(); ++b) most = std::max(most, distance(i, b));
    }
    return most;
  };
  const double farthest = largest(0, m);
  constexpr double kPi = 3.14159265358979323846;
  Matrix<double> weights(m, m);
  for (Index i = 0; i < m; ++i) {
    const double reach = options.sum_to_one == SumToOne::kRows ? largest(i, 1) : farthest;
    for (Index b = 0; b < m; ++b) {
      const double dist = distance(i, b);
      const double share = reach > 0 ? dist / reach : 0;  // one block alone: 0
      switch (options.falloff) {
        case Falloff::kLinear:
          weights(i, b) = 1 - share;
          break;
        case Falloff::kCos:
          weights(i, b) = std::cos(share * kPi / 4);
          break;
        case Falloff::kExp:
          weights(i, b) = std::exp(-dist / options.sigma);
          break;
        case Falloff::kGaussian:
          weights(i, b) = std::exp(-share * share * 9 / 2);
          break;
        case Falloff::kLocal:
          weights(i, b) = dist <= options.threshold ? 1 : 0;
          break;
      }
    }
  }
  return weights;
}

inline void divide_by_row_sums(MatrixView<double> m) {
  for (Index i = 0; i < m.rows; ++i) {
    double sum = 0;
    for (Index b = 0; b < m.cols; ++b) sum += m(i, b);
    for (Index b = 0; b < m.cols; ++b) m(i, b) /= sum;
  }
}

}  // namespace detail

template <Accumulator A>
MixingMatrix<A> locality(GridShape blocks, const LocalityOptions& options) {
  detail::expect_grid("locality", "blocks", blocks);
  if (!(options.sigma > 0) || !(options.threshold >= 0)) {
    detail::fail_option("locality", "options",
                        "have sigma " + std::to_string(options.sigma) + " and threshold " +
                            std::to_string(options.threshold),
                        "sigma > 0 and threshold >= 0");
  }
  Matrix<double> weights = detail::locality_weights(blocks, options);
  if (options.sum_to_one == SumToOne::kRows) {
    detail::divide_by_row_sums(MatrixView<double>(weights));
  } else if (options.sum_to_one == SumToOne::kColumns) {
    detail::divide_by_row_sums(MatrixView<double>(weights).transposed());
  }
  return MixingMatrix<A>(weights);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
