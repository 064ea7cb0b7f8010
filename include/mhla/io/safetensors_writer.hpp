#pragma once

/// \file
/// Writes safetensors files.
///
/// The bytes depend only on names, types, shapes, values and metadata, not on the order of calls.
/// Tensors are sorted by element type, widest first and unknown types last, then by name; metadata
/// is sorted by key. Spaces pad the header to a multiple of 8, so every tensor of a known type is
/// aligned to its elements. The strict reader (safetensors.hpp) reads written files back bit for
/// bit. Files above 16 MiB of header or 1,000,000 tensors need larger limits in SafetensorsOptions.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/io/replacement_file.hpp"
#include "mhla/io/safetensors_format.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Collects views of tensors; to_bytes() and write() read their elements.
class SafetensorsWriter {
 public:
  /// Adds a tensor, or throws and adds nothing.
  /// \throws safetensors_error for a name that is taken, longer than 1,024 bytes, not UTF-8 or
  ///     __metadata__; for more than 8 axes or a size below 0; for a number of bytes that dtype and
  ///     shape do not give; for an unknown dtype without a name, or with the name of a known dtype.
  void add(std::string_view name, StoredTensor tensor);

  /// Adds contiguous row-major values: a span of a Stored type, or a std::vector, std::array or
  /// similar container that is no temporary.
  template <std::ranges::contiguous_range Values>
  requires std::ranges::borrowed_range<Values>
  void add(std::string_view name, std::vector<Index> shape, Values&& values) {
    using T = std::ranges::range_value_t<Values>;
    const std::span<const T> view(values);
    add(name, {dtype_of<T>(), std::move(shape), std::as_bytes(view)});
  }

  /// Adds a matrix as [rows, cols].
  template <Scalar T>
  void add(std::string_view name, const Matrix<T>& matrix) {
    add(name, {matrix.rows(), matrix.cols()},
        std::span<const T>(matrix.data(), static_cast<std::size_t>(matrix.size())));
  }
  template <Scalar T>
  void add(std::string_view name, Matrix<T>&& matrix) = delete;  // would dangle

  /// Adds a text under a key.
  /// \throws safetensors_error for a key that is taken or longer than 1,024 bytes, and for text
  /// that is not UTF-8.
  void add_metadata(std::string_view key, std::string_view text);

  /// Returns the whole file.
  /// \throws safetensors_error for a header of more than 100,000,000 bytes.
  std::vector<std::byte> to_bytes() const;

  /// Writes a temporary file in the same folder, then renames it to `path`. Follows symbolic links.
  /// The new file takes the mode of a replaced file, and its owner and group if the system allows
  /// it. Other hard links keep the old file. After an error `path` is unchanged and the temporary
  /// file is removed.
  /// \throws safetensors_error that names the path.
  void write(const std::filesystem::path& path) const;

 private:
  using Item = StoredTensors::const_pointer;

  std::vector<Item> in_order() const;
  std::string header(const std::vector<Item>& items) const;  ///< preceded by its length

  StoredTensors tensors_;
  SafetensorsMetadata metadata_;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Appends "text" in quotes; bytes above 0x7F stay unchanged.
inline void append_json(std::string& json, std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  constexpr std::string_view special = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
  json += '"';
  for (const char c : text) {
    if (const std::size_t at = special.find(c); at != std::string_view::npos) {
      json += {'\\', letters[at]};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]};
    } else {
      json += c;
    }
  }
  json += '"';
}

/// Throws unless a key or a text may be in a header.
inline void expect_text(const std::string& what, std::string_view text, std::size_t longest) {
  if (text.size() > longest) {
    fail_safetensors("output", SafetensorsFault::kNameTooLong, std::nullopt,
                     what + " " + printable(text) + " of " + std::to_string(text.size()) + " bytes",
                     "at most " + std::to_string(longest));
  }
  if (valid_utf8(text) != text.size()) {
    fail_safetensors("output", SafetensorsFault::kUtf8, std::nullopt, what + " " + printable(text),
                     "valid UTF-8");
  }
}

/// Throws unless an entry may be added under `key`.
template <class Map>
void expect_new_key(const std::string& what, const Map& map, std::string_view key) {
  expect_text(what, key, kSafetensorsMaxName);
  if (map.contains(key)) {
    fail_safetensors("output", SafetensorsFault::kDuplicateKey, std::nullopt,
                     what + " " + printable(key) + " again", "each once");
  }
}

}  // namespace detail

inline void SafetensorsWriter::add(std::string_view name, StoredTensor tensor) {
  detail::expect_new_key("tensor", tensors_, name);
  const std::string what = "tensor " + detail::printable(name) + " of " +
                           detail::dtype_text(tensor.dtype, tensor.unknown_dtype) +
                           detail::shape_text(tensor.shape);
  const auto fail = [&](SafetensorsFault fault, const std::string& got, const char* expected) {
    detail::fail_safetensors("output", fault, std::nullopt, got, expected);
  };
  const std::string& unknown = tensor.unknown_dtype;
  if (tensor.dtype != Dtype::kUnknown ? !unknown.empty()
                                      : unknown.empty() || dtype_of_name(unknown)) {
    fail(SafetensorsFault::kUnknownDtype,
         what + " and the unknown dtype " + detail::printable(unknown),
         "a dtype, or the name of an unknown one");
  }
  detail::expect_text("dtype", unknown, kSafetensorsMaxName);
  if (name == detail::kMetadataKey) {
    fail(SafetensorsFault::kReservedName, what, "another name");
  }
  if (tensor.shape.size() > kSafetensorsMaxRank) {
    fail(SafetensorsFault::kRank, what, "at most 8 axes");
  }
  if (std::any_of(tensor.shape.begin(), tensor.shape.end(), [](Index size) { return size < 0; })) {
    fail(SafetensorsFault::kNotAnInteger, what, "sizes >= 0");
  }
  const std::optional<std::uint64_t> bytes = detail::stored_bytes(tensor.shape, tensor.dtype);
  if (!bytes) fail(SafetensorsFault::kOverflow, what, "fewer than 2^63 bytes");
  if (!detail::may_have_bytes(tensor.dtype, *bytes, tensor.bytes.size())) {
    fail(SafetensorsFault::kSize, what + " with " + std::to_string(tensor.bytes.size()) + " bytes",
         detail::bytes_text(tensor.dtype, *bytes).c_str());
  }
  tensors_.emplace(name, std::move(tensor));
}

inline void SafetensorsWriter::add_metadata(std::string_view key, std::string_view text) {
  detail::expect_new_key("metadata key", metadata_, key);
  detail::expect_text("metadata text", text, text.size());
  metadata_.emplace(key, text);
}

inline auto SafetensorsWriter::in_order() const -> std::vector<Item> {
  std::vector<Item> items;
  items.reserve(tensors_.size());
  for (const auto& item : tensors_) items.push_back(&item);
  std::sort(items.begin(), items.end(), [](Item a, Item b) {
    return std::tie(b->second.dtype, a->first) < std::tie(a->second.dtype, b->first);
  });
  return items;
}

inline std::string SafetensorsWriter::header(const std::vector<Item>& items) const {
  std::uint64_t length = 0;
  std::string text(sizeof length, '\0');
  text += '{';
  if (!metadata_.empty()) {
    detail::append_json(text, detail::kMetadataKey);
    char separator = '{';
    text += ':';
    for (const auto& [key, value] : metadata_) {
      text += std::exchange(separator, ',');
      detail::append_json(text, key);
      text += ':';
      detail::append_json(text, value);
    }
    text += '}';
  }
  std::uint64_t end = 0;
  for (const Item item : items) {
    const StoredTensor& tensor = item->second;
    if (text.back() != '{') text += ',';
    detail::append_json(text, item->first);
    text += ":{\"dtype\":";
    const bool known = tensor.dtype != Dtype::kUnknown;
    detail::append_json(text, known ? dtype_name(tensor.dtype) : tensor.unknown_dtype);
    text += ",\"shape\":[";
    for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
      if (axis > 0) text += ',';
      text += std::to_string(tensor.shape[axis]);
    }
    text += "],\"data_offsets\":[" + std::to_string(end) + ",";
    end += tensor.bytes.size();
    text += std::to_string(end) + "]}";
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  length = text.size() - sizeof length;
  if (length > kSafetensorsMaxHeader) {
    detail::fail_safetensors("output", SafetensorsFault::kHeaderTooLong, std::nullopt,
                             "a header of " + std::to_string(length) + " bytes",
                             "at most " + std::to_string(kSafetensorsMaxHeader));
  }
  std::memcpy(text.data(), &length, sizeof length);
  return text;
}

inline std::vector<std::byte> SafetensorsWriter::to_bytes() const {
  const std::vector<Item> items = in_order();
  const std::string head = header(items);
  std::vector<std::byte> bytes(head.size());
  std::memcpy(bytes.data(), head.data(), head.size());
  for (const Item item : items) {
    bytes.insert(bytes.end(), item->second.bytes.begin(), item->second.bytes.end());
  }
  return bytes;
}

inline void SafetensorsWriter::write(const std::filesystem::path& path) const {
  const std::vector<Item> items = in_order();
  const std::string head = header(items);
  detail::ReplacementFile file(path);
  file.append(head.data(), head.size());
  for (const Item item : items) {
    file.append(item->second.bytes.data(), item->second.bytes.size());
  }
  file.replace_target();
}

}  // namespace MHLA_TARGET
}  // namespace mhla
