#pragma once

/// \file
/// Clips of a disc that flies in a box and bounces off its walls, as rows of patches with numbers
/// from -1 to 1, and noise on them.

#include <algorithm>
#include <cmath>
#include <mhla/core/matrix.hpp>

#include "../support/random.hpp"
#include "model.hpp"

namespace stream_video {

inline constexpr double kRadius = 3;  // of the disc, in pixels

/// The pixel (y, x) of frame f of rows of patches.
template <class Rows, class T>
auto& pixel_of(Rows& video, Index f, Index y, Index x, const Options<T>& o) {
  const Index patch = o.patch();
  return video(f * o.patches() + y / patch * o.side + x / patch, y % patch * patch + x % patch);
}

/// Returns frames [frames * patches, P], the patches of a frame one after the other.
template <class T>
mhla::Matrix<T> draw_clip(const Options<T>& o, Index frames, examples::Random& random) {
  const Index pixels = o.side * o.patch();
  const double low = kRadius, high = static_cast<double>(pixels - 1) - kRadius;
  double at[2], speed[2];
  for (int axis = 0; axis < 2; ++axis) {
    at[axis] = low + (high - low) * random.uniform();
    speed[axis] = (random.uniform() < 0.5 ? -1 : 1) * (0.5 + random.uniform());
  }
  mhla::Matrix<T> clip(frames * o.patches(), o.channels);
  for (Index f = 0; f < frames; ++f) {
    for (Index y = 0; y < pixels; ++y) {
      for (Index x = 0; x < pixels; ++x) {
        const double distance =
            std::hypot(static_cast<double>(y) - at[0], static_cast<double>(x) - at[1]);
        pixel_of(clip, f, y, x, o) =
            static_cast<T>(2 * std::clamp(kRadius + 0.5 - distance, 0., 1.) - 1);
      }
    }
    for (int axis = 0; axis < 2; ++axis) {
      at[axis] += speed[axis];
      if (at[axis] < low) at[axis] = 2 * low - at[axis], speed[axis] = -speed[axis];
      if (at[axis] > high) at[axis] = 2 * high - at[axis], speed[axis] = -speed[axis];
    }
  }
  return clip;
}

/// Returns rows of noise.
template <class T>
mhla::Matrix<T> draw_noise(Index rows, Index cols, examples::Random& random) {
  mhla::Matrix<T> noise(rows, cols);
  for (Index i = 0; i < noise.size(); ++i) noise.data()[i] = static_cast<T>(random.normal());
  return noise;
}

/// Clips of a step of the training, with noise and without.
template <class T>
struct Batch {
  mhla::Matrix<T> noisy, clean, levels;

  /// A quarter of the frames has noise of a level s from 0 to 1: (1 - s) x + s noise. Levels near 1
  /// are frequent, because there the frames before it decide.
  Batch(const Options<T>& o, Index clips, std::uint64_t seed)
      : noisy(clips * o.frames * o.patches(), o.channels),
        clean(noisy.rows(), noisy.cols()),
        levels(clips * o.frames, kLevels) {
    examples::Random random(seed);
    const Index rows = o.frames * o.patches();
    for (Index c = 0; c < clips; ++c) {
      clean.middleRows(c * rows, rows) = draw_clip(o, o.frames, random);
    }
    noisy = draw_noise<T>(noisy.rows(), noisy.cols(), random);
    for (Index f = 0; f < levels.rows(); ++f) {
      const double u = random.uniform(), s = random.uniform() < 0.75 ? 0 : 1 - u * u;
      write_level(s, levels.row(f).data());
      auto frame = noisy.middleRows(f * o.patches(), o.patches());
      frame = static_cast<T>(1 - s) * clean.middleRows(f * o.patches(), o.patches()) +
              static_cast<T>(s) * frame;
    }
  }
};

}  // namespace stream_video
