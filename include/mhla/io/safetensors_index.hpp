#pragma once

/// \file
/// The index of a checkpoint of several safetensors files: parses untrusted JSON into a file name
/// per tensor.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/io/safetensors_entries.hpp"
#include "mhla/io/safetensors_file.hpp"
#include "mhla/io/safetensors_format.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The shard of each tensor, relative to the folder of the index.
using SafetensorsIndex = std::map<std::string, std::string, std::less<>>;

/// True if a path, relative to a folder, names something in it or below. Links are not followed.
inline bool stays_in_folder(const std::string& shard) {
  const std::filesystem::path path = path_of(shard);
  bool inside = !shard.empty() && shard.find('\0') == std::string::npos && !path.has_root_path();
  for (const std::filesystem::path& part : path) inside = inside && part != "..";
  return inside;
}

/// Receives the tokens of an index. nlohmann_json calls the functions without a comment; each
/// accepts a token or throws. Everything but weight_map is skipped.
class SafetensorsIndexParser {
 public:
  SafetensorsIndexParser(std::string_view text, const std::string& file,
                         const SafetensorsOptions& options)
      : text_(text), file_(file), options_(options), reached_(text.data()) {}

  SafetensorsIndex parse() {
    // nlohmann_json would take a byte 0 for the end of the text.
    if (const std::size_t zero = text_.find('\0'); zero < text_.size()) {
      reached_ += zero;
      fail(SafetensorsFault::kJson, "a byte 0", "JSON");
    }
    const char* const end = text_.data() + text_.size();
    nlohmann::json::sax_parse(CountingIterator(text_.data(), &reached_),
                              CountingIterator(end, &reached_), this);
    if (!keys_.contains(kMap)) {
      fail(SafetensorsFault::kMissingKey, "an index without weight_map", "one with it");
    }
    return std::move(index_);
  }

  bool start_object(std::size_t) {
    if (depth_ == 1 && key_ == kMap) {
      in_map_ = true;
    } else if (depth_ > 0) {
      skip("an object");
    }
    ++depth_;
    return true;
  }
  bool end_object() {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  bool start_array(std::size_t) {
    skip("a list");
    ++depth_;
    return true;
  }
  bool end_array() { return end_object(); }

  bool key(std::string& name) {
    if (depth_ == 1) {
      if (!keys_.insert(name).second) fail_duplicate(name);
      key_ = name;
    } else if (in_map_) {
      add_tensor(name);
    }
    return true;
  }
  bool string(std::string& value) {
    if (!in_map_) return skip("a string");
    if (!stays_in_folder(value)) {
      fail(SafetensorsFault::kShardPath,
           "tensor " + printable(tensor_->first) + " in shard " + printable(value),
           "a file in the folder of the index or below");
    }
    tensor_->second = value;
    return true;
  }
  bool number_unsigned(std::uint64_t) { return skip("a number"); }
  bool number_integer(std::int64_t) { return skip("a number"); }
  bool number_float(double, const std::string&) { return skip("a number"); }
  bool boolean(bool) { return skip("a truth value"); }
  bool null() { return skip("null"); }
  bool binary(nlohmann::json::binary_t&) { return skip("binary data"); }

  template <class Exception>
  bool parse_error(std::size_t, const std::string&, const Exception&) {
    const std::size_t end = position(), from = end < 24 ? 0 : end - 24;
    fail(SafetensorsFault::kJson,
         "text that ends with " + printable(text_.substr(from, end - from)), "JSON");
  }

 private:
  static constexpr std::string_view kMap = "weight_map";

  void add_tensor(const std::string& name) {
    if (name.size() > kSafetensorsMaxName) {
      fail(SafetensorsFault::kNameTooLong,
           "key " + printable(name) + " of " + std::to_string(name.size()) + " bytes",
           "at most " + std::to_string(kSafetensorsMaxName));
    }
    const auto [tensor, added] = index_.try_emplace(name);
    if (!added) fail_duplicate(name);
    if (index_.size() > options_.tensor_limit) {
      fail(SafetensorsFault::kTooMany, std::to_string(index_.size()) + " tensors",
           "at most " + std::to_string(options_.tensor_limit) + " (tensor_limit)");
    }
    tensor_ = tensor;
  }

  /// Skips a value where it has no meaning, and refuses it elsewhere.
  bool skip(const std::string& value) const {
    if (depth_ == 0) fail(SafetensorsFault::kWrongType, "an index that is " + value, "an object");
    if (depth_ == 1 && key_ == kMap) {
      fail(SafetensorsFault::kWrongType, "weight_map that is " + value, "an object");
    }
    if (in_map_) {
      fail(SafetensorsFault::kWrongType, "tensor " + printable(tensor_->first) + " in " + value,
           "the name of a file");
    }
    return true;
  }

  std::size_t position() const { return static_cast<std::size_t>(reached_ - text_.data()); }
  [[noreturn]] void fail_duplicate(const std::string& name) const {
    fail(SafetensorsFault::kDuplicateKey, "key " + printable(name) + " again", "each key once");
  }
  [[noreturn]] void fail(SafetensorsFault fault, const std::string& got,
                         const std::string& expected) const {
    fail_safetensors(file_, fault, position(), got, expected);
  }

  std::string_view text_;
  const std::string& file_;
  const SafetensorsOptions& options_;
  const char* reached_;  // after the last character read

  SafetensorsIndex index_;
  std::set<std::string, std::less<>> keys_;  // keys of the index
  std::string key_;                          // last key of the index
  std::size_t depth_ = 0;                    // objects and lists around the next token
  bool in_map_ = false;
  SafetensorsIndex::iterator tensor_;  // last key of weight_map
};

/// Reads an index.
/// \throws safetensors_error for the first broken rule.
inline SafetensorsIndex read_safetensors_index(const std::filesystem::path& path,
                                               const SafetensorsOptions& options) {
  InputFile file(path);
  expect_no_other_format(file.name(), file.first_bytes(), "the index of a checkpoint");
  const std::uint64_t size = file.size();
  if (size > options.header_limit) {
    fail_safetensors(file.name(), SafetensorsFault::kHeaderTooLong, std::nullopt,
                     "an index of " + std::to_string(size) + " bytes",
                     "at most " + std::to_string(options.header_limit) + " (header_limit)");
  }
  const std::unique_ptr<std::byte[]> text = file.read_rest();
  return SafetensorsIndexParser(
             {reinterpret_cast<const char*>(text.get()), static_cast<std::size_t>(size)},
             file.name(), options)
      .parse();
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
