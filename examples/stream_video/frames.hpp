#pragma once

/// \file
/// Frames of a video, and their picture.

#include <algorithm>
#include <cmath>
#include <mhla/core/matrix.hpp>

#include "../support/picture.hpp"
#include "model.hpp"

namespace stream_video {

/// Frame f of rows of patches.
template <class Rows>
auto frame_of(Rows& video, Index f, const Options<float>& o) {
  return video.middleRows(f * o.patches(), o.patches());
}

/// Pixels of two videos, one below the other.
inline picture::Picture strip(const mhla::Matrix<float>& drawn, const mhla::Matrix<float>& truth,
                              const Options<float>& o) {
  constexpr Index kScale = 4, kGap = 2;
  const Index patch = static_cast<Index>(std::lround(std::sqrt(static_cast<double>(o.channels))));
  const Index side = o.side * patch, frames = drawn.rows() / o.patches();
  picture::Picture all = picture::Picture::Constant(
      2 * kScale * (side + kGap), frames * kScale * (side + kGap), picture::Color(255, 255, 255));
  for (Index v = 0; v < 2; ++v) {
    for (Index f = 0; f < frames; ++f) {
      for (Index y = 0; y < kScale * side; ++y) {
        for (Index x = 0; x < kScale * side; ++x) {
          const Index row = y / kScale, col = x / kScale;
          const float number = frame_of(v == 0 ? drawn : truth, f, o)(
              row / patch * o.side + col / patch, row % patch * patch + col % patch);
          const auto gray = std::clamp(127.5F * (number + 1), 0.0F, 255.0F);
          all(v * kScale * (side + kGap) + y, f * kScale * (side + kGap) + x)
              .setConstant(static_cast<unsigned char>(gray));
        }
      }
    }
  }
  return all;
}

}  // namespace stream_video
