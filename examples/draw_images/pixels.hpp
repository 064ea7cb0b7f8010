#pragma once

/// \file
/// Images in the form that the models read: rows of 32 x 32 numbers in [-1, 1].

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mhla/core/matrix.hpp>
#include <mhla/layer/patch_embedding.hpp>
#include <vector>

#include "../support/fashion_mnist.hpp"

namespace draw_images {

using examples::kClasses;
using mhla::Index;

constexpr Index kEdge = 32;                                 // side of an image with its margin
constexpr Index kImage = kEdge * kEdge;                     // numbers of an image
constexpr Index kMargin = (kEdge - examples::kPixels) / 2;  // black, -1

/// Writes image i to a row of kImage numbers.
template <class T>
void read_pixels(const examples::Images& images, Index i, T* to) {
  constexpr Index kSide = examples::kPixels;
  std::fill_n(to, kImage, T(-1));
  const std::uint8_t* from = images.pixels.data() + i * kSide * kSide;
  for (Index y = 0; y < kSide; ++y) {
    for (Index x = 0; x < kSide; ++x) {
      to[(y + kMargin) * kEdge + x + kMargin] = static_cast<T>(*from++) / T(127.5) - T(1);
    }
  }
}

/// The 28 x 28 grey pixels of a row.
template <class T>
std::vector<std::uint8_t> grey(const T* row) {
  std::vector<std::uint8_t> pixels;
  for (Index y = kMargin; y < kEdge - kMargin; ++y) {
    for (Index x = kMargin; x < kEdge - kMargin; ++x) {
      const T value = (std::clamp(row[y * kEdge + x], T(-1), T(1)) + T(1)) * T(127.5);
      pixels.push_back(static_cast<std::uint8_t>(std::lround(value)));
    }
  }
  return pixels;
}

/// The patches of rows of images.
inline mhla::PatchGrid patch_grid(Index images, Index side) {
  return {.channels = 1, .image = {kEdge, kEdge}, .patch = {side, side}, .batch = images};
}
/// Rows of images in the form of `patches` and `unpatchify`, [images * 32, 32].
template <class T>
mhla::MatrixView<T> edges(mhla::MatrixView<T> images) {
  return {images.data, images.rows * kEdge, kEdge, kEdge};
}

}  // namespace draw_images
