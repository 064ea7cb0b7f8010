#pragma once

/// \file
/// Tokens of an image.

#include <mhla/core/matrix.hpp>

#include "../support/fashion_mnist.hpp"

namespace train_images {

using examples::Images;
using examples::kClasses;
using examples::kPixels;
using mhla::Index;

constexpr Index kPatch = 2;                      // pixels along a side of a patch
constexpr Index kSide = 16;                      // patches along a side, after padding to 32
constexpr Index kTokens = kSide * kSide;         // N
constexpr Index kPatchPixels = kPatch * kPatch;  // width of a token before the embedding
constexpr Index kMargin = (kSide * kPatch - kPixels) / 2;  // black pixels around an image

/// Writes the patches of image i in raster order, standardised over the training set.
/// \param tokens  [N, kPatchPixels]
template <class T>
void read_tokens(const Images& images, Index i, mhla::MatrixView<T> tokens) {
  constexpr double kMean = 0.2860, kDeviation = 0.3530;  // of the training pixels over 255
  const std::uint8_t* const pixels = images.pixels.data() + i * kPixels * kPixels;
  for (Index y = 0; y < kSide * kPatch; ++y) {
    for (Index x = 0; x < kSide * kPatch; ++x) {
      const Index py = y - kMargin, px = x - kMargin;
      const bool inside = py >= 0 && py < kPixels && px >= 0 && px < kPixels;
      const double value = inside ? pixels[py * kPixels + px] / 255.0 : 0.0;
      tokens(y / kPatch * kSide + x / kPatch, y % kPatch * kPatch + x % kPatch) =
          static_cast<T>((value - kMean) / kDeviation);
    }
  }
}

}  // namespace train_images
