#pragma once

/// \file
/// Safetensors files as tests read them: all tensors as doubles, and metadata that holds truth
/// values, numbers and lists.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mhla/io/safetensors.hpp"

namespace mhla::test {

/// A dense row-major tensor.
struct Tensor {
  std::vector<Index> shape;
  std::vector<double> values;
};

/// One file, read completely. Every function throws std::exception with the name of the file and
/// the reason.
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

  Json json(const std::string& key) const;
  Index whole(const Json& value, const std::string& key) const;

  std::string name_;
  std::map<std::string, Tensor> tensors_;
  SafetensorsMetadata metadata_;
};

// ------------------------------------------------------------------------------------------------

inline Safetensors::Safetensors(const std::filesystem::path& path)
    : name_(path.filename().string()) {
  const auto file = mhla::Safetensors::read(path);
  for (const auto& [name, stored] : file.tensors()) {
    Tensor tensor{stored.shape, std::vector<double>(static_cast<std::size_t>(stored.size()))};
    file.copy_to<double>(name, tensor.values);
    tensors_.emplace(name, std::move(tensor));
  }
  metadata_ = file.metadata();
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

inline Safetensors::Json Safetensors::json(const std::string& key) const {
  Json value = Json::parse(text(key), nullptr, false);
  if (value.is_discarded()) fail("has '" + text(key) + "' for '" + key + "', no JSON");
  return value;
}

inline Index Safetensors::whole(const Json& value, const std::string& key) const {
  if (!value.is_number_unsigned()) fail("has '" + key + "' that is no whole number >= 0");
  return static_cast<Index>(
      std::min<std::uint64_t>(value.get<std::uint64_t>(), std::numeric_limits<Index>::max()));
}

inline double Safetensors::number(const std::string& key) const {
  const Json value = json(key);
  if (!value.is_number()) fail("has '" + text(key) + "' for '" + key + "', no number");
  return value.get<double>();
}

inline Index Safetensors::integer(const std::string& key) const { return whole(json(key), key); }

inline std::vector<Index> Safetensors::integers(const std::string& key) const {
  const Json list = json(key);
  if (!list.is_array()) fail("has '" + text(key) + "' for '" + key + "', no list");
  std::vector<Index> values;
  for (const Json& value : list) values.push_back(whole(value, key));
  return values;
}

}  // namespace mhla::test
