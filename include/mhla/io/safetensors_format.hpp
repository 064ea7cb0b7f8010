#pragma once

/// \file
/// The layout, element types, limits and errors that the reader and the writer share.
///
///     8 bytes        N, the length of the header, little endian
///     N bytes        JSON, padded with spaces:
///                    {"__metadata__": {key: text, ...},
///                     name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
///     the rest       data; the tensors tile it, row-major and little endian
///
/// The strict profile of the format: a file is refused unless every rule of SafetensorsFault holds.
/// A tensor of a type outside Dtype, such as F8_E4M3, is part of its file but cannot be copied as
/// numbers.
/// Source: https://github.com/huggingface/safetensors.

#include <Eigen/Core>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {

/// The rule that a file, a request or a written tensor breaks.
enum class SafetensorsFault {
  kFile,             ///< the file cannot be opened, read or written, or changes while it is read
  kMemory,           ///< the data does not fit in memory
  kOtherFormat,      ///< the file is no Git LFS pointer, zip archive (.pt), pickle, page or GGUF
  kTooShort,         ///< at least 10 bytes: a length and {}
  kHeaderTooLong,    ///< N is at most SafetensorsOptions::header_limit
  kHeaderBeyondEnd,  ///< 8 + N is at most the size of the file
  kHeaderStart,      ///< the header starts with {
  kUtf8,             ///< text is valid UTF-8
  kJson,             ///< the header is JSON
  kAfterHeader,      ///< nothing but spaces follows the closing }
  kDepth,            ///< lists hold no lists and no objects
  kTooMany,          ///< at most SafetensorsOptions::tensor_limit tensors and metadata keys
  kNameTooLong,      ///< keys have at most 1,024 bytes
  kDuplicateKey,     ///< no key appears twice in one object
  kUnknownKey,       ///< a tensor has no keys other than dtype, shape and data_offsets
  kMissingKey,       ///< a tensor has dtype, shape and data_offsets
  kWrongType,        ///< each value is of the kind shown in the layout
  kNotAnInteger,     ///< sizes and offsets are whole numbers in [0, 2^63), without sign or exponent
  kRank,             ///< at most 8 axes
  kOffsetCount,      ///< exactly two offsets
  kUnknownDtype,     ///< types have a name; the type of a copied tensor is in Dtype
  kOverflow,         ///< the product of the sizes other than 0, in bytes, is below 2^63
  kRange,            ///< begin <= end <= size of the data
  kSize,             ///< end - begin is the size of the tensor in bytes; of an unknown type, at
                     ///< least a bit an element, and nothing where there are no elements
  kHole,             ///< every byte of data belongs to a tensor
  kOverlap,          ///< no byte of data belongs to two tensors
  kReservedName,     ///< no tensor to be written is called __metadata__
  kNoTensor,         ///< the requested tensor exists
  kConversion,       ///< the requested type holds the tensor's numbers exactly
  kShardPath,        ///< the files that an index names lie in its folder or below
};

/// A refusal. The message has the file (or "bytes"), the position, what was found and what was
/// expected. Text from the file is shortened and escaped.
class safetensors_error : public error {
 public:
  safetensors_error(SafetensorsFault fault, std::optional<std::uint64_t> position,
                    const std::string& message)
      : error(message), fault_(fault), position_(position) {}

  SafetensorsFault fault() const noexcept { return fault_; }
  /// The byte that reading had reached, or at which the data is wrong, if any.
  std::optional<std::uint64_t> position() const noexcept { return position_; }

 private:
  SafetensorsFault fault_;
  std::optional<std::uint64_t> position_;
};

}  // namespace mhla

namespace mhla {
inline namespace MHLA_TARGET {

static_assert(std::endian::native == std::endian::little, "values are copied as they are");

/// Element types, ordered by alignment as in the format's reference implementation. kUnknown is any
/// other type, of unknown width.
enum class Dtype : std::int8_t { kUnknown = -1, kBool, kU8, kF16, kBF16, kI32, kF32, kF64, kI64 };

/// Bytes of an element; 0 for kUnknown.
constexpr Index dtype_width(Dtype dtype) {
  constexpr Index widths[] = {0, 1, 1, 2, 2, 4, 4, 8, 8};
  return widths[static_cast<int>(dtype) + 1];
}

/// The name in a file; empty for kUnknown, where StoredTensor has the name.
constexpr std::string_view dtype_name(Dtype dtype) {
  constexpr std::string_view names[] = {"",    "BOOL", "U8",  "F16", "BF16",
                                        "I32", "F32",  "F64", "I64"};
  return names[static_cast<int>(dtype) + 1];
}

constexpr std::optional<Dtype> dtype_of_name(std::string_view name) {
  for (int i = 0; i < 8; ++i) {
    if (dtype_name(static_cast<Dtype>(i)) == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

/// A C++ type that elements can be read as and written from.
template <class T>
concept Stored = Scalar<T> || std::same_as<T, std::int64_t> || std::same_as<T, std::int32_t> ||
    std::same_as<T, std::uint8_t> || std::same_as<T, bool>;

/// The element type that stores T.
template <Stored T>
constexpr Dtype dtype_of() {
  if constexpr (std::same_as<T, bool>) return Dtype::kBool;
  if constexpr (std::same_as<T, std::uint8_t>) return Dtype::kU8;
  if constexpr (std::same_as<T, Eigen::half>) return Dtype::kF16;
  if constexpr (std::same_as<T, Eigen::bfloat16>) return Dtype::kBF16;
  if constexpr (std::same_as<T, std::int32_t>) return Dtype::kI32;
  if constexpr (std::same_as<T, float>) return Dtype::kF32;
  if constexpr (std::same_as<T, double>) return Dtype::kF64;
  if constexpr (std::same_as<T, std::int64_t>) return Dtype::kI64;
}

/// A non-owning view of a dense row-major array at any address.
struct StoredTensor {
  Dtype dtype = Dtype::kF32;
  std::vector<Index> shape;          ///< empty: a single number
  std::span<const std::byte> bytes;  ///< as many as shape and dtype require
  std::string unknown_dtype = {};    ///< the name of the type if dtype is kUnknown

  /// Number of elements.
  Index size() const {
    return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>());
  }
};

/// Tensors by name, and metadata by key.
using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;
using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

inline constexpr std::size_t kSafetensorsMaxName = 1024;             ///< bytes
inline constexpr std::size_t kSafetensorsMaxRank = 8;                ///< axes
inline constexpr std::uint64_t kSafetensorsMaxHeader = 100'000'000;  ///< bytes, of the format

/// Limits of the reader.
struct SafetensorsOptions {
  /// The longest header that is read, in bytes; at most kSafetensorsMaxHeader.
  std::uint64_t header_limit = std::uint64_t{16} << 20;
  /// Largest number of tensors, and of metadata keys, in a file; also of tensors in an index.
  std::size_t tensor_limit = 1'000'000;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::string_view kMetadataKey = "__metadata__";

/// Returns a path in UTF-8. On Windows path::string() throws for a name outside the code page.
inline std::string path_text(const std::filesystem::path& path) {
  const std::u8string text = path.u8string();
  return {text.begin(), text.end()};
}
/// Returns the path of a name in UTF-8.
inline std::filesystem::path path_of(std::string_view utf8) {
  return std::u8string(utf8.begin(), utf8.end());
}

/// Throws "mhla::Safetensors: FILE: byte 12: GOT, expected EXPECTED".
[[noreturn]] inline void fail_safetensors(const std::string& file, SafetensorsFault fault,
                                          std::optional<std::uint64_t> position,
                                          const std::string& got, const std::string& expected) {
  std::string text = "mhla::Safetensors: " + file + ": ";
  if (position) text += "byte " + std::to_string(*position) + ": ";
  throw safetensors_error(fault, position, text + got + ", expected " + expected);
}

/// Returns the position of the first byte that is not valid UTF-8, or text.size(). RFC 3629 forbids
/// overlong forms, surrogates and characters above U+10FFFF.
inline std::size_t valid_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  std::size_t i = 0;
  while (i < text.size()) {
    const unsigned lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const std::size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4) return i;
    // The second byte excludes overlong forms, surrogates and numbers that are too large.
    const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(i + 1) < low || byte(i + 1) > high) return i;
    for (std::size_t k = 2; k <= more; ++k) {
      if ((byte(i + k) & 0xC0u) != 0x80u) return i;
    }
    i += more + 1;
  }
  return i;
}

/// Returns the fewest bytes of a tensor of sizes >= 0: all bytes if its type is known, otherwise
/// one bit per element. Empty if the product of its nonzero sizes overflows, so that no stride of
/// an empty tensor overflows either.
inline std::optional<std::uint64_t> stored_bytes(const std::vector<Index>& shape, Dtype dtype) {
  constexpr Index limit = std::numeric_limits<Index>::max();
  const bool known = dtype != Dtype::kUnknown;
  Index product = known ? dtype_width(dtype) : 1;
  bool empty = false;
  for (const Index size : shape) {
    empty = empty || size == 0;
    if (size > 0 && product > limit / size) return std::nullopt;
    if (size > 0) product *= size;
  }
  if (empty) return 0;
  const auto count = static_cast<std::uint64_t>(product);
  return known ? count : (count + 7) / 8;
}

/// True if a tensor of this type whose shape gives `stored_bytes` may have `bytes` bytes.
inline bool may_have_bytes(Dtype dtype, std::uint64_t stored_bytes, std::uint64_t bytes) {
  const bool more = dtype == Dtype::kUnknown && stored_bytes > 0;
  return more ? bytes >= stored_bytes : bytes == stored_bytes;
}
inline std::string bytes_text(Dtype dtype, std::uint64_t stored_bytes) {
  const bool more = dtype == Dtype::kUnknown && stored_bytes > 0;
  return (more ? "at least " : "") + std::to_string(stored_bytes) + " bytes";
}

/// Returns the name of a type for a message.
inline std::string dtype_text(Dtype dtype, std::string_view unknown_dtype) {
  return dtype == Dtype::kUnknown ? printable(unknown_dtype) : std::string(dtype_name(dtype));
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
