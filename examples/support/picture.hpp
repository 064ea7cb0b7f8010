#pragma once

/// \file
/// Pictures of the examples: reading, writing, a colour map and letters, all by stb.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mhla/core/matrix.hpp>
#include <mhla/io/replacement_file.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_RESIZE_IMPLEMENTATION
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STBI_FAILURE_USERMSG
#include <stb_easy_font.h>
#include <stb_image.h>
#include <stb_image_resize.h>
#include <stb_image_write.h>

namespace picture {

using mhla::Index;
using Color = Eigen::Array<stbi_uc, 3, 1>;  // red, green, blue
using Picture = mhla::Matrix<Color>;        // [height, width]
static_assert(sizeof(Color) == 3, "a Picture is the bytes stb reads and writes");
constexpr int kJpegQuality = 75;  // of 100
using Freed = std::unique_ptr<stbi_uc, void (*)(void*)>;

/// `from`, [h, w] pixels of three bytes, resized to [height, width].
/// \throws std::runtime_error naming the file.
inline Picture resized(const stbi_uc* from, Index h, Index w, Index height, Index width,
                       const std::string& path) {
  Picture picture(height, width);
  if (!stbir_resize_uint8(from, static_cast<int>(w), static_cast<int>(h), 0, picture.data()->data(),
                          static_cast<int>(width), static_cast<int>(height), 0, 3)) {
    throw std::runtime_error(path + ": cannot be resized");
  }
  return picture;
}

/// The picture in a PNG or JPEG file, resized to a longer side of `side` pixels. It is cropped to
/// whole patches of `patch` pixels, at least one. Sets w and h to the file's width and height.
/// \throws std::runtime_error naming the file and what is wrong with it.
inline Picture load(const std::string& path, Index side, Index patch, int& w, int& h) {
  const Freed file(stbi_load(path.c_str(), &w, &h, nullptr, 3), stbi_image_free);
  if (!file) throw std::runtime_error(path + ": " + stbi_failure_reason());
  const auto scaled = [&](Index s) { return std::max(patch, s * side / std::max(w, h)); };
  const Picture picture = resized(file.get(), h, w, scaled(h), scaled(w), path);
  return picture.topLeftCorner(picture.rows() / patch * patch, picture.cols() / patch * patch);
}

/// Writes the whole file or nothing: a JPEG if its name ends in .jpg, otherwise a PNG.
/// \throws std::runtime_error, mhla::safetensors_error naming the file.
inline void save(const Picture& picture, const std::string& path) {
  std::string encoded;
  const auto append = [](void* to, void* bytes, int size) {
    static_cast<std::string*>(to)->append(static_cast<const char*>(bytes),
                                          static_cast<std::size_t>(size));
  };
  const int w = static_cast<int>(picture.cols()), h = static_cast<int>(picture.rows());
  const stbi_uc* const data = picture.data()->data();
  const int written = path.ends_with(".jpg")
                          ? stbi_write_jpg_to_func(append, &encoded, w, h, 3, data, kJpegQuality)
                          : stbi_write_png_to_func(append, &encoded, w, h, 3, data, 0);
  if (written == 0) throw std::runtime_error(path + ": cannot be encoded");
  mhla::detail::ReplacementFile file(path);
  file.append(encoded.data(), encoded.size());
  file.replace_target();
}

/// Matplotlib's inferno on [0, 1], fitted by Matt Zucker (shadertoy.com/view/WlfXRN, CC0), with
/// gray shining through.
inline Color inferno(double t, double gray) {
  const Eigen::Matrix<double, 3, 7> c{
      {0.000219, 0.106513, 11.602493, -41.703996, 77.162936, -71.319428, 25.131126},
      {0.001651, 0.563956, -3.972854, 17.436399, -33.402359, 32.626064, -12.242669},
      {-0.019481, 3.932712, -15.942394, 44.354145, -81.807309, 73.209520, -23.070325}};
  Eigen::Array3d sum = Eigen::Array3d::Zero();
  for (Index i = 6; i >= 0; --i) sum = sum * std::clamp(t, 0., 1.) + c.col(i).array();
  return (255 * (0.85 * sum + gray).max(0).min(1)).cast<stbi_uc>();
}

/// Writes lines of text, cut off at the canvas. A unit of the font has `size` pixels; capitals have
/// 7 units, lines 12.
inline void write(Picture& canvas, Index x, Index y, Index size, const Color& color,
                  std::string lines) {
  struct Corner {
    float x, y, z, color;
  };
  std::vector<Corner> corners(100 * lines.size());  // 4 per stroke, at most 25 strokes per letter
  const int strokes = stb_easy_font_print(0, 0, lines.data(), nullptr, corners.data(),
                                          static_cast<int>(corners.size() * sizeof(Corner)));
  for (std::size_t s = 0; s < 4 * static_cast<std::size_t>(strokes); s += 4) {
    const auto left = static_cast<Index>(corners[s].x), top = static_cast<Index>(corners[s].y);
    const Index column = std::min(x + size * left, canvas.cols());
    const Index row = std::min(y + size * top, canvas.rows());
    const Index wide = size * (static_cast<Index>(corners[s + 2].x) - left);
    const Index high = size * (static_cast<Index>(corners[s + 2].y) - top);
    canvas
        .block(row, column, std::min(high, canvas.rows() - row),
               std::min(wide, canvas.cols() - column))
        .setConstant(color);
  }
}

/// snprintf as a string of up to 127 letters.
inline std::string text(const char* format, auto... values) {
  char buffer[128];
  std::snprintf(buffer, sizeof(buffer), format, values...);
  return buffer;
}

}  // namespace picture
