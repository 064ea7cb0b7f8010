#pragma once

/// \file
/// Frames of a video, and their picture.

#include <algorithm>
#include <mhla/core/matrix.hpp>

#include "../support/picture.hpp"
#include "clips.hpp"
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
  const Index side = o.side * o.patch(), frames = drawn.rows() / o.patches();
  picture::Picture all = picture::Picture::Constant(
      2 * kScale * (side + kGap), frames * kScale * (side + kGap), picture::Color(255, 255, 255));
  for (Index v = 0; v < 2; ++v) {
    for (Index f = 0; f < frames; ++f) {
      for (Index y = 0; y < kScale * side; ++y) {
        for (Index x = 0; x < kScale * side; ++x) {
          const float number = pixel_of(v == 0 ? drawn : truth, f, y / kScale, x / kScale, o);
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
