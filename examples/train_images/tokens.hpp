#pragma once

/// \file
/// Tokens of an image.

#include <algorithm>
#include <cmath>
#include <mhla/core/matrix.hpp>
#include <mhla/policy/grid_partition.hpp>

#include "../support/fashion_mnist.hpp"

namespace train_images {

using examples::Images;
using examples::kClasses;
using examples::kPixels;
using mhla::Index;

constexpr Index kPatch = 2;  // pixels along a side of a patch
constexpr Index kSide = 16;  // patches along a side, after padding to 32
inline constexpr mhla::GridShape kGrid(kSide, kSide);
constexpr Index kTokens = kSide * kSide;                   // N
constexpr Index kPatchPixels = kPatch * kPatch;            // width of a token before the embedding
constexpr Index kMargin = (kSide * kPatch - kPixels) / 2;  // black pixels around an image

/// The value at (y, x) of a grid of rows x columns that is stretched from a smaller or larger one:
/// bilinear, and constant beyond the outermost centres. Exact on the grid itself.
/// \param at  at(row, column) of the grid `from`
template <class At>
double stretched(Index y, Index x, mhla::GridShape grid, mhla::GridShape from, At&& at) {
  const auto along = [&](Index place, int axis) {
    const double scale = static_cast<double>(from[axis]) / static_cast<double>(grid[axis]);
    const double most = static_cast<double>(from[axis] - 1);
    return std::clamp((static_cast<double>(place) + 0.5) * scale - 0.5, 0.0, most);
  };
  const double row = along(y, 1), column = along(x, 2);
  const Index top = static_cast<Index>(row), left = static_cast<Index>(column);
  const Index bottom = std::min(top + 1, from[1] - 1), right = std::min(left + 1, from[2] - 1);
  const double down = row - std::floor(row), across = column - std::floor(column);
  return (1 - down) * ((1 - across) * at(top, left) + across * at(top, right)) +
         down * ((1 - across) * at(bottom, left) + across * at(bottom, right));
}

/// Writes the patches of image i in raster order, standardised over the training set.
/// \param tokens  [N, kPatchPixels]
/// \param grid    patches along each axis, over which the padded image is stretched
template <class T>
void read_tokens(const Images& images, Index i, mhla::MatrixView<T> tokens,
                 mhla::GridShape grid = kGrid) {
  constexpr double kMean = 0.2860, kDeviation = 0.3530;  // of the training pixels over 255
  const std::uint8_t* const pixels = images.pixels.data() + i * kPixels * kPixels;
  const auto pixel = [&](Index y, Index x) {
    const Index py = y - kMargin, px = x - kMargin;
    const bool inside = py >= 0 && py < kPixels && px >= 0 && px < kPixels;
    return inside ? pixels[py * kPixels + px] / 255.0 : 0.0;
  };
  const mhla::GridShape from(kSide * kPatch, kSide * kPatch);
  const mhla::GridShape to(grid[1] * kPatch, grid[2] * kPatch);
  for (Index y = 0; y < to[1]; ++y) {
    for (Index x = 0; x < to[2]; ++x) {
      const double value = stretched(y, x, to, from, pixel);
      tokens(y / kPatch * grid[2] + x / kPatch, y % kPatch * kPatch + x % kPatch) =
          static_cast<T>((value - kMean) / kDeviation);
    }
  }
}

}  // namespace train_images
