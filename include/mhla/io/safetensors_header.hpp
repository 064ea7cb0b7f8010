#pragma once

/// \file
/// The header of a safetensors file: parses untrusted JSON into tensors that tile the data.
///
/// The SAX parser of nlohmann_json reads the text once. Only kept values are built, duplicate keys
/// are detected, and the first token that breaks a rule stops the parser. Time: O(N log tensors)
/// for N bytes. Memory: names, metadata, about 300 bytes per tensor, and a few times the longest
/// string.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/io/safetensors_entries.hpp"
#include "mhla/io/safetensors_format.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Reads the header of N bytes at byte 8 of `file`, followed by `data_size` bytes of data.
/// nlohmann_json calls the functions without a comment; each accepts a token or throws.
class SafetensorsHeaderParser {
 public:
  SafetensorsHeaderParser(std::string_view text, std::uint64_t data_size, const std::string& file,
                          const SafetensorsOptions& options)
      : text_(text), data_size_(data_size), file_(file), options_(options), reached_(text.data()) {}

  /// \throws safetensors_error for the first broken rule.
  SafetensorsHeader parse() {
    using Json = nlohmann::json;
    if (text_.empty() || text_.front() != '{') {
      fail(SafetensorsFault::kHeaderStart,
           text_.empty() ? "an empty header"
                         : "a header that starts with " + printable(text_.substr(0, 1)),
           "'{'");
    }
    if (const std::size_t valid = valid_utf8(text_); valid != text_.size()) {
      reached_ = text_.data() + valid;
      fail(SafetensorsFault::kUtf8, "the bytes " + printable(text_.substr(valid, 4)),
           "valid UTF-8");
    }
    const char* const end = text_.data() + text_.size();
    // Not strict: the parser stops at the closing brace.
    Json::sax_parse(CountingIterator(text_.data(), &reached_), CountingIterator(end, &reached_),
                    this, Json::input_format_t::json, false);
    reached_ = std::find_if(reached_, end, [](char c) { return c != ' '; });
    if (reached_ != end) {
      fail(SafetensorsFault::kAfterHeader, printable({reached_, 1}) + " after the closing brace",
           "nothing but spaces");
    }
    expect_tiling(header_, data_size_, 8 + text_.size(), file_);
    return std::move(header_);
  }

  bool start_object(std::size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kFile;
    } else if (place_ == Place::kFile && name_ == kMetadataKey) {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kFile) {
      place_ = Place::kTensor;
      entry_ = {};
      keys_seen_ = 0;
    } else {
      refuse("an object");
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::kTensor) finish_tensor();
    place_ = place_ == Place::kFile ? Place::kStart : Place::kFile;
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ != Place::kTensor || key_ == kDtype) refuse("a list");
    place_ = Place::kList;
    return true;
  }

  bool end_array() {
    if (key_ == kOffsets && offset_count_ != 2) {
      fail(SafetensorsFault::kOffsetCount,
           where() + " has " + std::to_string(offset_count_) + " data_offsets", "2");
    }
    place_ = Place::kTensor;
    return true;
  }

  bool key(std::string& name) {
    expect_name("key", name);
    if (place_ == Place::kTensor) {
      tensor_key(name);
      return true;
    }
    bool added = false;
    if (place_ == Place::kMetadata) {
      added = header_.metadata.try_emplace(name).second;
      metadata_key_ = name;
    } else if (name == kMetadataKey) {
      added = !std::exchange(has_metadata_, true);
    } else {
      added = header_.tensors.try_emplace(name).second;
    }
    if (place_ == Place::kFile) name_ = name;
    if (!added) fail_duplicate(name);
    if (std::max(header_.tensors.size(), header_.metadata.size()) > options_.tensor_limit) {
      const std::string limit = std::to_string(options_.tensor_limit);
      fail(SafetensorsFault::kTooMany, "more than " + limit + " tensors or metadata keys",
           "at most " + limit + " of each (tensor_limit)");
    }
    return true;
  }

  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      header_.metadata[metadata_key_] = value;
    } else if (place_ == Place::kTensor && key_ == kDtype) {
      if (value.empty()) fail(SafetensorsFault::kUnknownDtype, where() + " of no dtype", "a name");
      expect_name("dtype", value);
      entry_.dtype = dtype_of_name(value).value_or(Dtype::kUnknown);
      if (entry_.dtype == Dtype::kUnknown) entry_.unknown_dtype = value;
    } else {
      refuse("a string");
    }
    return true;
  }

  bool number_unsigned(std::uint64_t value) {
    if (place_ != Place::kList) refuse("a number");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
        value > static_cast<std::uint64_t>(std::numeric_limits<Index>::max())) {
      refuse("the number " + std::to_string(value));
    }
    if (key_ == kOffsets) {
      (offset_count_ == 0 ? entry_.offsets.first : entry_.offsets.second) = value;
      if (++offset_count_ > 2) {
        fail(SafetensorsFault::kOffsetCount, where() + " has more than 2 data_offsets", "2");
      }
    } else {
      entry_.shape.push_back(static_cast<Index>(value));
      if (entry_.shape.size() > kSafetensorsMaxRank) {
        fail(SafetensorsFault::kRank, where() + " has more than 8 axes", "at most 8");
      }
    }
    return true;
  }

  bool number_integer(std::int64_t) { refuse("a number with a sign"); }
  bool number_float(double, const std::string& digits) {
    refuse("the number " + printable(digits));
  }
  bool boolean(bool) { refuse("a truth value"); }
  bool null() {
    if (place_ == Place::kFile && name_ == kMetadataKey) return true;  // no metadata
    refuse("null");
  }
  bool binary(nlohmann::json::binary_t&) { refuse("binary data"); }

  template <class Exception>
  bool parse_error(std::size_t, const std::string&, const Exception& e) {
    constexpr int kNumberTooLarge = 406;  // of nlohmann_json: beyond the range of double
    if (e.id == kNumberTooLarge) refuse("a number beyond the range of double");
    const std::uint64_t from = position() < 24 ? 0 : position() - 24;
    fail(SafetensorsFault::kJson,
         "text that ends with " + printable(text_.substr(from, position() - from)), "JSON");
  }

 private:
  enum class Place { kStart, kFile, kMetadata, kTensor, kList };
  // Keys of a tensor, as bits.
  static constexpr unsigned kDtype = 1, kShape = 2, kOffsets = 4;

  void expect_name(const std::string& what, const std::string& name) const {
    if (name.size() > kSafetensorsMaxName) {
      fail(SafetensorsFault::kNameTooLong,
           what + " " + printable(name) + " of " + std::to_string(name.size()) + " bytes",
           "at most " + std::to_string(kSafetensorsMaxName));
    }
  }

  void tensor_key(const std::string& name) {
    key_ = name == "dtype"          ? kDtype
           : name == "shape"        ? kShape
           : name == "data_offsets" ? kOffsets
                                    : 0;
    if (key_ == 0) {
      fail(SafetensorsFault::kUnknownKey, where() + " has key " + printable(name),
           "dtype, shape and data_offsets");
    }
    if ((keys_seen_ & key_) != 0) fail_duplicate(name);
    keys_seen_ |= key_;
    offset_count_ = 0;
  }

  void finish_tensor() {
    if (keys_seen_ != (kDtype | kShape | kOffsets)) {
      const char* const missing = (keys_seen_ & kDtype) == 0   ? "dtype"
                                  : (keys_seen_ & kShape) == 0 ? "shape"
                                                               : "data_offsets";
      fail(SafetensorsFault::kMissingKey, where() + " without " + missing,
           "dtype, shape and data_offsets");
    }
    const auto [begin, end] = entry_.offsets;
    if (begin > end || end > data_size_) {
      fail(SafetensorsFault::kRange, range_text(), "begin <= end <= " + std::to_string(data_size_));
    }
    const std::optional<std::uint64_t> bytes = stored_bytes(entry_.shape, entry_.dtype);
    if (!bytes) {
      fail(SafetensorsFault::kOverflow, where() + " of " + shape_text(), "fewer than 2^63 bytes");
    }
    if (!may_have_bytes(entry_.dtype, *bytes, end - begin)) {
      fail(SafetensorsFault::kSize, range_text(),
           bytes_text(entry_.dtype, *bytes) + " for " + shape_text());
    }
    header_.tensors.find(name_)->second = std::move(entry_);
  }

  /// Refuses a value of a kind that its place does not allow.
  [[noreturn]] void refuse(const std::string& value) const {
    using F = SafetensorsFault;
    switch (place_) {
      case Place::kStart:
      case Place::kFile:
        fail(F::kWrongType, where() + " is " + value, "an object");
      case Place::kMetadata:
        fail(F::kWrongType, "metadata key " + printable(metadata_key_) + " is " + value,
             "a string");
      case Place::kTensor:
        fail(F::kWrongType, where() + " has " + key_name() + " that is " + value,
             key_ == kDtype ? "a string" : "a list");
      case Place::kList:
        break;
    }
    const bool nested = value == "an object" || value == "a list";
    fail(nested ? F::kDepth : F::kNotAnInteger, where() + " has " + value + " in its " + key_name(),
         "whole numbers in [0, 2^63)");
  }

  std::string range_text() const {
    return where() + " at [" + std::to_string(entry_.offsets.first) + ", " +
           std::to_string(entry_.offsets.second) + ") of the data";
  }
  std::string shape_text() const {
    return dtype_text(entry_.dtype, entry_.unknown_dtype) + detail::shape_text(entry_.shape);
  }
  std::string key_name() const {
    return key_ == kDtype ? "dtype" : key_ == kShape ? "shape" : "data_offsets";
  }
  std::string where() const {
    return name_ == kMetadataKey ? "__metadata__" : "tensor " + printable(name_);
  }
  std::uint64_t position() const { return static_cast<std::uint64_t>(reached_ - text_.data()); }

  [[noreturn]] void fail_duplicate(const std::string& name) const {
    fail(SafetensorsFault::kDuplicateKey, "key " + printable(name) + " again", "each key once");
  }
  [[noreturn]] void fail(SafetensorsFault fault, const std::string& got,
                         const std::string& expected) const {
    fail_safetensors(file_, fault, 8 + position(), got, expected);
  }

  std::string_view text_;
  std::uint64_t data_size_;
  const std::string& file_;
  const SafetensorsOptions& options_;
  const char* reached_;  // after the last character read

  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  bool has_metadata_ = false;
  std::string name_;  // of the tensor
  std::string metadata_key_;
  SafetensorsHeader::Entry entry_;
  unsigned keys_seen_ = 0;
  unsigned key_ = 0;
  int offset_count_ = 0;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
