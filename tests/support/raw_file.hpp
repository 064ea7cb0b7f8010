#pragma once

/// \file
/// Safetensors files assembled by hand, valid or broken; the answers of the reader; and a
/// comparison of two files.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/safetensors.hpp"

namespace mhla {

inline void PrintTo(SafetensorsFault fault, std::ostream* out) {
  *out << "fault " << static_cast<int>(fault);
}

}  // namespace mhla

namespace mhla::test {

using Bytes = std::vector<std::byte>;

/// A file with this header and `data` bytes 0, 1, 2, ... Its length field has `length`, if given,
/// instead of the true value.
inline Bytes raw_file(std::string_view header, std::size_t data,
                      std::optional<std::uint64_t> length = std::nullopt) {
  const std::uint64_t said = length.value_or(header.size());
  Bytes bytes(sizeof said + header.size() + data);
  std::memcpy(bytes.data(), &said, sizeof said);
  if (!header.empty()) std::memcpy(bytes.data() + sizeof said, header.data(), header.size());
  for (std::size_t i = 0; i < data; ++i) {
    bytes[sizeof said + header.size() + i] = static_cast<std::byte>(i);
  }
  return bytes;
}

/// {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}, each as JSON.
inline std::string one_tensor(const std::string& dtype, const std::string& shape,
                              const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

inline bool same_tensors(const StoredTensors& a, const StoredTensors& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.dtype == y.second.dtype &&
           x.second.unknown_dtype == y.second.unknown_dtype && x.second.shape == y.second.shape &&
           std::ranges::equal(x.second.bytes, y.second.bytes);
  });
}

/// Writes again all tensors and metadata that a file holds.
inline Bytes rewritten(const Safetensors& file) {
  SafetensorsWriter writer;
  for (const auto& [name, tensor] : file.tensors()) writer.add(name, tensor);
  for (const auto& [key, text] : file.metadata()) writer.add_metadata(key, text);
  return writer.to_bytes();
}

struct Refusal {
  SafetensorsFault fault;
  std::optional<std::uint64_t> position;
  std::string message;
};

/// Reason why the reader refuses the bytes; empty if it accepts them. Any other exception passes.
inline std::optional<Refusal> refusal(const Bytes& bytes, const SafetensorsOptions& options = {}) {
  try {
    mhla::Safetensors::parse(bytes, options);
    return std::nullopt;
  } catch (const safetensors_error& e) {
    return Refusal{e.fault(), e.position(), e.what()};
  }
}

/// The fault of the safetensors_error that `call` throws.
template <class F>
std::optional<SafetensorsFault> fault_of(F&& call) {
  try {
    call();
    return std::nullopt;
  } catch (const safetensors_error& e) {
    return e.fault();
  }
}

}  // namespace mhla::test
