#pragma once

/// \file
/// Fashion-MNIST: 60,000 training and 10,000 test images of 28 x 28 grey pixels in 10 classes of
/// clothing.
///
/// Files are IDX in gzip: 4 bytes of magic number (0, 0, type 8 for bytes, number of axes), 4 bytes
/// for each axis, big endian, then the bytes. Debian has them in dataset-fashion-mnist.
/// Source: Xiao, Rasul and Vollgraf, arXiv:1708.07747.

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mhla/core/scalar.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "fingerprint.hpp"

namespace examples {

using mhla::Index;

constexpr Index kClasses = 10;
constexpr Index kPixels = 28;  // along a side of an image

/// Labelled images.
struct Images {
  std::vector<std::uint8_t> pixels;  ///< [count, 28, 28]
  std::vector<std::uint8_t> labels;  ///< [count], below kClasses

  Index count() const { return static_cast<Index>(labels.size()); }
  /// Sizes and hash that identify these images.
  nlohmann::json to_json() const {
    return {{"count", count()}, {"fnv1a", fnv1a(labels, fnv1a(pixels))}};
  }
};

enum class Part { kTraining, kTest };

/// Reads the first `count` images of a part from two files in `folder`.
/// \throws std::runtime_error naming the file, what was expected and what came.
Images read_images(const std::filesystem::path& folder, Part part, Index count);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// The first `wanted` items of an IDX file of bytes; `axes` are the sizes of an item.
inline std::vector<std::uint8_t> read_idx(const std::filesystem::path& path,
                                          const std::vector<Index>& axes, Index wanted) {
  const auto fail = [&path](const std::string& reason) {
    throw std::runtime_error(path.string() + " " + reason);
  };
  if (!std::filesystem::is_regular_file(path)) {
    fail("is not there: expected a file of Fashion-MNIST (Debian: dataset-fashion-mnist)");
  }
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) fail("cannot be opened");
  const auto read = [&](std::uint8_t* bytes, Index count) {
    const int got = gzread(file.get(), bytes, static_cast<unsigned>(count));
    int code = 0;
    const char* const why = gzerror(file.get(), &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
      throw std::runtime_error(std::string(why) + ", expected a whole gzip file");  // names it
    }
    return static_cast<Index>(got);
  };
  const auto number = [&] {
    std::array<std::uint8_t, 4> b{};
    if (read(b.data(), 4) != 4) fail("ends within its header");
    return static_cast<Index>(b[0]) << 24 | Index{b[1]} << 16 | Index{b[2]} << 8 | Index{b[3]};
  };

  const Index magic = number(), expected = 0x801 + static_cast<Index>(axes.size());
  if (magic != expected) {
    fail("has magic number " + std::to_string(magic) + ", expected " + std::to_string(expected));
  }
  const Index items = number();
  Index item = 1;  // bytes of an item
  for (const Index axis : axes) {
    const Index size = number();
    if (size != axis) {
      fail("has an axis of " + std::to_string(size) + ", expected " + std::to_string(axis));
    }
    item *= axis;
  }
  std::vector<std::uint8_t> bytes;  // grows with the data read, not with the header's sizes
  constexpr Index kPiece = 1 << 20;
  while (true) {
    const auto size = bytes.size();
    bytes.resize(size + kPiece);
    const Index got = read(bytes.data() + size, kPiece);
    bytes.resize(size + static_cast<std::size_t>(got));
    if (got < kPiece || static_cast<Index>(bytes.size()) > items * item) break;
  }
  if (static_cast<Index>(bytes.size()) != items * item) {
    const bool more = static_cast<Index>(bytes.size()) > items * item;
    fail("has " + std::string(more ? "at least " : "") + std::to_string(bytes.size()) +
         " bytes after its header, expected " + std::to_string(items) + " x " +
         std::to_string(item));
  }
  if (wanted > items) {
    fail("has " + std::to_string(items) + " items, expected at least " + std::to_string(wanted));
  }
  bytes.resize(static_cast<std::size_t>(wanted * item));
  return bytes;
}

}  // namespace detail

inline Images read_images(const std::filesystem::path& folder, Part part, Index count) {
  const std::string name = part == Part::kTraining ? "train" : "t10k";
  const auto labels_path = folder / (name + "-labels-idx1-ubyte.gz");
  Images images{
      detail::read_idx(folder / (name + "-images-idx3-ubyte.gz"), {kPixels, kPixels}, count),
      detail::read_idx(labels_path, {}, count)};
  for (const std::uint8_t label : images.labels) {
    if (label >= kClasses) {
      throw std::runtime_error(labels_path.string() + " has label " + std::to_string(label) +
                               ", expected labels below " + std::to_string(kClasses));
    }
  }
  return images;
}

}  // namespace examples
