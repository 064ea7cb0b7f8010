#pragma once

/// \file
/// A strict reader of safetensors files, for tests: F64 and F32 tensors as doubles, and metadata.
///
///     8 bytes, little endian    length of the header
///     JSON                      name -> dtype, shape, data_offsets; __metadata__: strings
///     data                      the tensors, side by side without holes, to the end of the file
///
/// A file that deviates in anything is refused. Sizes are checked against the size of the file
/// before anything is allocated.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/scalar.hpp"

namespace mhla::test {

/// A dense row-major tensor.
struct Tensor {
  std::vector<Index> shape;
  std::vector<double> values;
};

/// One file, read completely. Every function throws std::runtime_error with the name of the file
/// and the reason.
class Safetensors {
 public:
  explicit Safetensors(const std::filesystem::path& path);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  const Tensor& tensor(const std::string& name) const;

  bool says(const std::string& key) const { return metadata_.contains(key); }
  /// The value of a metadata key, without quotes around it.
  std::string text(const std::string& key) const;
  bool boolean(const std::string& key) const;
  double number(const std::string& key) const;
  Index integer(const std::string& key) const;
  std::vector<Index> integers(const std::string& key) const;  ///< [1, 2, 3]

  [[noreturn]] void fail(const std::string& reason) const {
    throw std::runtime_error(name_ + ": " + reason);
  }

 private:
  using Json = nlohmann::json;
  using Size = std::uint64_t;

  std::string read_bytes(const std::filesystem::path& path) const;
  Json parse(const std::string& text, const std::string& what) const;
  Size unsigned_number(const Json& value, const std::string& what) const;
  /// The tensor that a header entry describes, its bytes being data[first, second).
  Tensor describe(const std::string& tensor, const Json& entry, Size size,
                  std::pair<Size, Size>& bytes) const;
  void expect_tiling(std::vector<std::pair<Size, Size>> ranges, Size size) const;

  std::string name_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// ------------------------------------------------------------------------------------------------

inline Safetensors::Safetensors(const std::filesystem::path& path)
    : name_(path.filename().string()) {
  static_assert(std::endian::native == std::endian::little, "values are copied as they are");
  const std::string bytes = read_bytes(path);
  Size length = 0;
  if (bytes.size() < sizeof length) fail("is too short for the length of a header");
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - sizeof length) {
    fail("has a header of " + std::to_string(length) + " bytes, beyond the end of the file");
  }
  const std::string text = bytes.substr(sizeof length, length);
  if (text.empty() || text.front() != '{') fail("has a header that does not start with {");
  const Json header = parse(text, "header");

  const char* const data = bytes.data() + sizeof length + length;
  const Size size = bytes.size() - sizeof length - length;
  std::vector<std::pair<Size, Size>> ranges;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) fail("has metadata that is no object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) fail("has metadata key '" + key + "' that is no string");
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    std::pair<Size, Size> range;
    Tensor tensor = describe(name, entry, size, range);
    const bool wide = entry["dtype"] == "F64";
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      if (wide) {
        std::memcpy(&tensor.values[i], data + range.first + 8 * i, 8);
      } else {
        float value = 0;
        std::memcpy(&value, data + range.first + 4 * i, 4);
        tensor.values[i] = static_cast<double>(value);
      }
    }
    tensors_[name] = std::move(tensor);
    ranges.push_back(range);
  }
  expect_tiling(std::move(ranges), size);
}

inline std::string Safetensors::read_bytes(const std::filesystem::path& path) const {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) fail("is not a file that can be read");
  const auto size = std::filesystem::file_size(path, error);
  std::ifstream stream(path, std::ios::binary);
  if (error || !stream) fail("is not a file that can be read");
  std::string bytes(size, '\0');
  if (!stream.read(bytes.data(), static_cast<std::streamsize>(size))) fail("cannot be read");
  return bytes;
}

inline Safetensors::Json Safetensors::parse(const std::string& text,
                                            const std::string& what) const {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto refuse_duplicates = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      fail("has '" + parsed.get<std::string>() + "' twice in its " + what);
    return true;
  };
  try {
    return Json::parse(text, refuse_duplicates);
  } catch (const Json::exception& e) {
    fail("has a " + what + " that is no JSON: " + e.what());
  }
}

inline Safetensors::Size Safetensors::unsigned_number(const Json& value,
                                                      const std::string& what) const {
  if (!value.is_number_unsigned()) fail("has " + what + " that is no whole number >= 0");
  return value.get<Size>();
}

inline Tensor Safetensors::describe(const std::string& tensor, const Json& entry, Size size,
                                    std::pair<Size, Size>& bytes) const {
  const std::string what = "tensor '" + tensor + "'";
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    fail("has " + what + " with other entries than dtype, shape and data_offsets");
  }
  const Json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (dtype != "F64" && dtype != "F32") {
    fail("has " + what + " of dtype " + dtype.dump() + "; F64 and F32 are supported");
  }
  if (!shape.is_array() || !offsets.is_array() || offsets.size() != 2) {
    fail("has " + what + " without a list as shape or two data_offsets");
  }
  bytes = {unsigned_number(offsets[0], what), unsigned_number(offsets[1], what)};
  if (bytes.first > bytes.second || bytes.second > size) {
    fail("has " + what + " at bytes [" + std::to_string(bytes.first) + ", " +
         std::to_string(bytes.second) + ") of " + std::to_string(size));
  }
  Tensor t;
  Size count = 1;
  for (const Json& axis : shape) {
    const Size length = unsigned_number(axis, what);
    if (length > size || (length > 0 && count > size / length)) fail("has " + what + " too large");
    count *= length;
    t.shape.push_back(static_cast<Index>(length));
  }
  const Size width = dtype == "F64" ? 8 : 4;
  if (bytes.second - bytes.first != count * width) {
    fail("has " + what + " of " + std::to_string(count) + " values in " +
         std::to_string(bytes.second - bytes.first) + " bytes");
  }
  t.values.resize(count);
  return t;
}

inline void Safetensors::expect_tiling(std::vector<std::pair<Size, Size>> ranges, Size size) const {
  std::sort(ranges.begin(), ranges.end());
  Size end = 0;
  for (const auto& range : ranges) {
    if (range.first != end) fail("has a hole or an overlap at byte " + std::to_string(end));
    end = range.second;
  }
  if (end != size) fail("has " + std::to_string(size - end) + " bytes behind the last tensor");
}

inline const Tensor& Safetensors::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail("lacks tensor '" + name + "'");
  return found->second;
}

inline std::string Safetensors::text(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) fail("lacks metadata key '" + key + "'");
  const std::string& value = found->second;
  const bool quoted = value.size() >= 2 && value.front() == '"' && value.back() == '"';
  return quoted ? value.substr(1, value.size() - 2) : value;
}

inline bool Safetensors::boolean(const std::string& key) const {
  const std::string value = text(key);
  if (value == "true" || value == "True" || value == "1") return true;
  if (value == "false" || value == "False" || value == "0") return false;
  fail("has '" + value + "' for '" + key + "', which is neither true nor false");
}

inline double Safetensors::number(const std::string& key) const {
  const Json value = parse(text(key), "'" + key + "'");
  if (!value.is_number()) fail("has '" + text(key) + "' for '" + key + "', no number");
  return value.get<double>();
}

inline Index Safetensors::integer(const std::string& key) const {
  const Json value = parse(text(key), "'" + key + "'");
  return static_cast<Index>(
      std::min<Size>(unsigned_number(value, "'" + key + "'"), std::numeric_limits<Index>::max()));
}

inline std::vector<Index> Safetensors::integers(const std::string& key) const {
  const Json list = parse(text(key), "'" + key + "'");
  if (!list.is_array()) fail("has '" + text(key) + "' for '" + key + "', no list");
  std::vector<Index> values;
  for (const Json& value : list) {
    values.push_back(static_cast<Index>(std::min<Size>(unsigned_number(value, "'" + key + "'"),
                                                       std::numeric_limits<Index>::max())));
  }
  return values;
}

}  // namespace mhla::test
