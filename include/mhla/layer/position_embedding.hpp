#pragma once

/// \file
/// The fixed sine-cosine embedding of the positions of an image's tokens, as in MAE and DiT.
///
///     e[r*X + s] = [h(s), h(r)],   h(p) = [sin(p w_0), ..., sin(p w_(n-1)), cos(p w_0), ...]
///     w_j = 10000^(-j / n)
///
/// for row r of Y, column s of X and n = C/4 frequencies. The first half of the channels encodes
/// the column, because MAE's get_2d_sincos_pos_embed calls numpy.meshgrid(w, h), w first.
/// Sources: He et al., arXiv:2111.06377; Peebles and Xie, arXiv:2212.09748.

#include <algorithm>
#include <cmath>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Returns the embedding [rows*columns, channels] of rows x columns tokens in raster order. It is
/// computed in double and rounded to A. Cost: max(rows, columns) * channels / 2 sines and cosines.
/// \throws option_error for negative rows or columns, or unless channels is a positive multiple of
///         4; shape_error if the product does not fit Index.
template <Accumulator A>
Matrix<A> sincos_2d(Index rows, Index columns, Index channels);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Returns h(p) for p in [0, count): rows [2 * frequencies].
template <Accumulator A>
Matrix<A> sincos_positions(Index count, Index frequencies) {
  Matrix<A> h(count, 2 * frequencies);
  for (Index j = 0; j < frequencies; ++j) {
    const double exponent = static_cast<double>(j) / static_cast<double>(frequencies);
    const double frequency = std::pow(10000.0, -exponent);
    for (Index p = 0; p < count; ++p) {
      const double angle = static_cast<double>(p) * frequency;
      h(p, j) = static_cast<A>(std::sin(angle));
      h(p, frequencies + j) = static_cast<A>(std::cos(angle));
    }
  }
  return h;
}

}  // namespace detail

template <Accumulator A>
Matrix<A> sincos_2d(Index rows, Index columns, Index channels) {
  constexpr const char* kName = "sincos_2d";
  if (rows < 0) detail::fail_option(kName, "rows", "is " + std::to_string(rows), "0 or more");
  if (columns < 0) {
    detail::fail_option(kName, "columns", "is " + std::to_string(columns), "0 or more");
  }
  if (channels < 1 || channels % 4 != 0) {
    detail::fail_option(kName, "channels", "is " + std::to_string(channels),
                        "a positive multiple of 4");
  }
  detail::checked_product(kName, "result", {rows, columns, channels});
  Matrix<A> e(rows * columns, channels);
  if (e.size() == 0) return e;
  const Index half = channels / 2;
  const Matrix<A> h = detail::sincos_positions<A>(std::max(rows, columns), half / 2);
  for (Index r = 0; r < rows; ++r) {
    e.block(r * columns, 0, columns, half) = h.topRows(columns);
    e.block(r * columns, half, columns, half).rowwise() = h.row(r);
  }
  return e;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
