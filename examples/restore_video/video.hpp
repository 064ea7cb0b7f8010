#pragma once

/// \file
/// A video as bytes: the first four fifths are for training, the rest is held out. It is drawn, or
/// read from a file of consecutive frames, each a binary PPM (P6), as ffmpeg -c:v ppm -f image2pipe
/// writes them.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mhla/core/matrix.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/fingerprint.hpp"
#include "../support/random.hpp"
#include "settings.hpp"

namespace restore_video {

class Video {
 public:
  /// Discs on a background, each on its own path; equal at every call.
  static Video of_discs(Index frames, Index height, Index width);
  /// \throws std::runtime_error naming the file, what was expected and what came.
  explicit Video(const std::filesystem::path& path);

  Index frames() const { return std::ssize(bytes_) / (height_ * width_ * kColours); }
  Index height() const { return height_; }
  Index width() const { return width_; }
  Index held_out() const { return frames() - frames() / 5; }  ///< the first frame held out

  /// Patches of the clip that begins at a frame, numbers in [-1, 1], [N, 3*patch*patch].
  template <class T>
  mhla::Matrix<T> clip(const Settings& s, Index begin) const;

  /// First frames of the held-out clips, `frames` of a clip apart.
  /// \throws std::runtime_error if there are none.
  std::vector<Index> held_out_clips(const Settings& s) const {
    std::vector<Index> begins;
    for (Index f = held_out(); f + s.span() <= frames(); f += s.frames) begins.push_back(f);
    if (begins.empty()) {
      throw std::runtime_error("the video has " + std::to_string(frames()) +
                               " frames, expected at least " + std::to_string(5 * s.span()) +
                               " for clips of " + std::to_string(s.span()));
    }
    return begins;
  }

  /// Sizes and hash that identify this video.
  nlohmann::json to_json() const {
    return {{"frames", frames()},
            {"height", height_},
            {"width", width_},
            {"fnv1a", examples::fnv1a(bytes_)}};
  }

 private:
  Video() = default;

  Index height_ = 0, width_ = 0;
  std::vector<std::uint8_t> bytes_;  // [frames, height, width, 3]
};

// ------------------------------------------------------------------------------------------------

inline Video Video::of_discs(Index frames, Index height, Index width) {
  constexpr int kDiscs = 4;
  Video video;
  video.height_ = height, video.width_ = width;
  const auto h = static_cast<double>(height), w = static_cast<double>(width);
  for (Index i = 0; i < frames * height * width; ++i) {
    const double time = static_cast<double>(i / (height * width)) / 10;
    const auto y = static_cast<double>(i / width % height), x = static_cast<double>(i % width);
    double colour[kColours] = {60, 60 + 120 * y / h, 140};
    for (int d = 0; d < kDiscs; ++d) {
      const double row = h * (0.5 + 0.4 * std::sin(time * (1 + 0.3 * d) + 2 * d));
      const double col = w * (0.5 + 0.4 * std::cos(time * (1.2 - 0.2 * d) + d));
      if (std::hypot(y - row, x - col) > h / (5. + d)) continue;
      for (int c = 0; c < kColours; ++c) colour[c] = (d + 2) * (c + 3) * 37 % 256;
    }
    for (const double c : colour) video.bytes_.push_back(static_cast<std::uint8_t>(c));
  }
  return video;
}

inline Video::Video(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const auto fail = [&](const std::string& what) {
    throw std::runtime_error(path.string() + " " + what + ", expected frames as binary PPM");
  };
  for (Index frame = 0; file.peek() != std::ifstream::traits_type::eof(); ++frame) {
    std::string magic;
    Index width = 0, height = 0, largest = 0;
    file >> magic >> width >> height >> largest;
    file.get();  // one whitespace character
    const std::string where = " frame " + std::to_string(frame);
    if (!file || magic != "P6" || largest != 255 || std::min(width, height) < 1 ||
        std::max(width, height) > 1 << 14) {
      fail("has no \"P6\", width, height and 255 before" + where);
    }
    if (frame == 0) width_ = width, height_ = height;
    if (width != width_ || height != height_) fail("has another size in" + where);
    const auto size = static_cast<std::size_t>(width * height * kColours);
    bytes_.resize(bytes_.size() + size);
    file.read(reinterpret_cast<char*>(&bytes_.end()[-std::ptrdiff_t(size)]),
              static_cast<std::streamsize>(size));
    if (!file) fail("ends in" + where);
  }
  if (bytes_.empty()) fail("cannot be read or is empty");
}

template <class T>
mhla::Matrix<T> Video::clip(const Settings& s, Index begin) const {
  mhla::Matrix<T> image(kColours * s.frames * height_, width_);  // channels, frames, rows
  for (Index row = 0; row < image.rows(); ++row) {
    const Index y = row % height_, f = row / height_ % s.frames, c = row / height_ / s.frames;
    const Index from = ((begin + f * s.stride) * height_ + y) * width_ * kColours + c;
    for (Index x = 0; x < width_; ++x) {
      const auto byte = bytes_[static_cast<std::size_t>(from + x * kColours)];
      image(row, x) = static_cast<T>(byte / 127.5 - 1);
    }
  }
  mhla::Matrix<T> patches(s.tokens(), s.features());
  mhla::patches(image, s.patches(), patches);
  return patches;
}

}  // namespace restore_video
