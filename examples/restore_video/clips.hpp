#pragma once

/// \file
/// Clips with holes, space-time boxes of tokens that a model does not see, and fillings that need
/// no learning.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "video.hpp"

namespace restore_video {

using Mask = std::vector<char>;  // [N], 1 for a hidden token

template <class T>
struct Clip {
  mhla::Matrix<T> patches;  // [N, 3*patch*patch]
  Mask mask;
  mhla::Matrix<T> filled;  // the patches, holes filled from the nearest frame

  bool hidden(Index token) const { return mask[static_cast<std::size_t>(token)] != 0; }
};

/// Hides random boxes until enough tokens are hidden, at least one. A box has a quarter to the
/// whole of a clip in time, and an eighth to a half of a frame in either direction.
inline Mask random_boxes(const Settings& s, examples::Random& random) {
  const mhla::GridShape grid = s.grid();
  Mask mask(static_cast<std::size_t>(s.tokens()), 0);
  const auto wanted = static_cast<Index>(s.masked * static_cast<double>(s.tokens()));
  const Index enough = std::max<Index>(wanted, 1);
  for (Index hidden = 0; hidden < enough;) {
    Index begin[3], end[3];
    for (int axis = 0; axis < 3; ++axis) {
      const Index size = grid[axis], least = axis == 0 ? (size + 3) / 4 : (size + 7) / 8;
      const Index length = least + random.below((axis == 0 ? size : size / 2) - least + 1);
      begin[axis] = random.below(size - length + 1);
      end[axis] = begin[axis] + length;
    }
    for (Index f = begin[0]; f < end[0]; ++f) {
      for (Index y = begin[1]; y < end[1]; ++y) {
        for (Index x = begin[2]; x < end[2]; ++x) {
          char& token = mask[static_cast<std::size_t>((f * grid[1] + y) * grid[2] + x)];
          hidden += token == 0;
          token = 1;
        }
      }
    }
  }
  return mask;
}

/// Fills holes with the mean colours of the visible tokens; with grey, 0, if none is visible.
template <class T>
mhla::Matrix<T> fill_with_mean(const mhla::Matrix<T>& patches, const Mask& mask,
                               const Settings& s) {
  mhla::Matrix<T> filled = patches;
  const Index pixels = s.patch * s.patch;  // per patch and colour; colours follow one another
  for (Index c = 0; c < kColours; ++c) {
    double sum = 0, count = 0;
    for (Index t = 0; t < filled.rows(); ++t) {
      if (mask[static_cast<std::size_t>(t)]) continue;
      sum += static_cast<double>(patches.row(t).segment(c * pixels, pixels).sum());
      count += static_cast<double>(pixels);
    }
    const T mean = count > 0 ? static_cast<T>(sum / count) : T(0);
    for (Index t = 0; t < filled.rows(); ++t) {
      if (!mask[static_cast<std::size_t>(t)]) continue;
      filled.row(t).segment(c * pixels, pixels).setConstant(mean);
    }
  }
  return filled;
}

/// Fills every hole with the same patch of the nearest frame that shows it, otherwise with the
/// mean.
template <class T>
mhla::Matrix<T> fill_with_nearest_frame(const mhla::Matrix<T>& patches, const Mask& mask,
                                        const Settings& s) {
  mhla::Matrix<T> filled = fill_with_mean(patches, mask, s);
  const Index per_frame = s.tokens() / s.frames;
  for (Index t = 0; t < filled.rows(); ++t) {
    if (!mask[static_cast<std::size_t>(t)]) continue;
    Index nearest = s.frames;
    for (Index other = t % per_frame; other < filled.rows(); other += per_frame) {
      if (mask[static_cast<std::size_t>(other)]) continue;
      const Index distance = std::abs(other - t) / per_frame;
      if (distance >= nearest) continue;
      nearest = distance;
      filled.row(t) = patches.row(other);
    }
  }
  return filled;
}

/// A clip of the video with random boxes.
template <class T>
Clip<T> hide_boxes(const Video& video, const Settings& s, Index begin, examples::Random& random) {
  const mhla::Matrix<T> patches = video.clip<T>(s, begin);
  const Mask mask = random_boxes(s, random);
  return {patches, mask, fill_with_nearest_frame(patches, mask, s)};
}

/// The clips of a step, from random places of the training part. Places depend on seed and step
/// alone, so a training can resume at any step.
template <class T>
std::vector<Clip<T>> training_clips(const Video& video, const Settings& s, Index step,
                                    Index count) {
  examples::Random random(examples::Random(static_cast<std::uint64_t>(s.seed)).bits() ^
                          static_cast<std::uint64_t>(step));
  std::vector<Clip<T>> clips;
  for (Index i = 0; i < count; ++i) {
    const Index begin = random.below(video.held_out() - s.span() + 1);
    clips.push_back(hide_boxes<T>(video, s, begin, random));
  }
  return clips;
}

/// The held-out clips. Their masks depend on the sizes of a clip alone.
template <class T>
std::vector<Clip<T>> held_out_clips(const Video& video, const Settings& s) {
  examples::Random random(0);
  std::vector<Clip<T>> clips;
  for (const Index begin : video.held_out_clips(s)) {
    clips.push_back(hide_boxes<T>(video, s, begin, random));
  }
  return clips;
}

/// Squared errors of hidden pixels.
struct Squares {
  double sum = 0, count = 0;

  /// Adds the squared errors of a clip; restored numbers are clamped to [-1, 1].
  template <class T>
  void add(const mhla::Matrix<T>& restored, const Clip<T>& clip) {
    for (Index t = 0; t < clip.patches.rows(); ++t) {
      if (!clip.hidden(t)) continue;
      for (Index j = 0; j < clip.patches.cols(); ++j) {
        const auto value = std::clamp(static_cast<double>(restored(t, j)), -1.0, 1.0);
        const double error = value - static_cast<double>(clip.patches(t, j));
        sum += error * error;
      }
      count += static_cast<double>(clip.patches.cols());
    }
  }
  /// Peak signal-to-noise ratio in dB; the peak is the whole range, 2.
  double psnr() const { return 10 * std::log10(4 * count / sum); }
};

}  // namespace restore_video
