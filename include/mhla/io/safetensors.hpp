#pragma once

/// \file
/// Reads untrusted safetensors files; safetensors_writer.hpp, included here, writes them.
///
///     const auto file = mhla::Safetensors::read("layer.safetensors");
///     const mhla::Matrix<float> weight = file.matrix<float>("to_q.weight");
///
/// Sizes are checked before anything is allocated. The header is read by the rules of
/// safetensors_format.hpp. Data is read only if the header describes all of it. Values are not
/// checked. Memory: the data, and the header while it is read.
/// Requires nlohmann_json (CMake: mhla::io, find_package(mhla COMPONENTS io)).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/io/safetensors_file.hpp"
#include "mhla/io/safetensors_format.hpp"
#include "mhla/io/safetensors_header.hpp"
#include "mhla/io/safetensors_writer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The tensors of one file.
class Safetensors {
 public:
  /// Reads a regular file into memory. Data is allocated and read only after the header has passed.
  /// \throws safetensors_error, and option_error for a header_limit above 100,000,000.
  static Safetensors read(const std::filesystem::path& path,
                          const SafetensorsOptions& options = {});

  /// Views a file in memory, at any address. `bytes` must outlive the result.
  static Safetensors parse(std::span<const std::byte> bytes,
                           const SafetensorsOptions& options = {});

  /// All tensors, sorted by name. Their bytes live as long as this object, also after a move.
  const StoredTensors& tensors() const { return tensors_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }

  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  /// \throws safetensors_error if there is no such tensor.
  const StoredTensor& tensor(std::string_view name) const;

  /// Copies the elements of a tensor to `out`, row-major and exact: T is the type of the tensor or
  /// a wider one (float for F16 and BF16, double for these and F32). A BOOL is true unless 0.
  /// \throws safetensors_error if there is no such tensor, or T cannot hold its type,
  /// shape_error unless `out` has the size of the tensor.
  template <Stored T>
  void copy_to(std::string_view name, std::span<T> out) const;

  /// A tensor [rows, cols] as a matrix, and a tensor [cols] as one row, exactly as copy_to does.
  /// \throws safetensors_error if there is no such tensor, it has another number of axes, or T
  /// cannot hold its type.
  template <Scalar T>
  Matrix<T> matrix(std::string_view name) const;

 private:
  explicit Safetensors(std::string file) : file_(std::move(file)) {}

  [[noreturn]] void fail(SafetensorsFault fault, const std::string& got,
                         const std::string& expected) const {
    detail::fail_safetensors(file_, fault, std::nullopt, got, expected);
  }
  /// Returns the tensor `name`.
  /// \throws safetensors_error if it is missing, or T cannot hold its type.
  template <Stored T>
  const StoredTensor& tensor_as(std::string_view name) const;
  /// Takes over the tensors of a header, with data at `data`.
  void adopt(detail::SafetensorsHeader header, const std::byte* data);

  std::string file_;
  std::unique_ptr<std::byte[]> data_;  // of a file that was read
  StoredTensors tensors_;
  SafetensorsMetadata metadata_;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

/// True if T represents every number of type `dtype`.
template <Stored T>
constexpr bool holds(Dtype dtype) {
  const bool half = dtype == Dtype::kF16 || dtype == Dtype::kBF16;
  return dtype == dtype_of<T>() || (std::is_same_v<T, float> && half) ||
         (std::is_same_v<T, double> && (half || dtype == Dtype::kF32));
}

/// to[i] = element i, stored as From.
template <class From, Stored T>
void copy_as(std::span<const std::byte> bytes, T* to) {
  const std::size_t count = bytes.size() / sizeof(From);
  if constexpr (std::is_same_v<T, bool>) {
    for (std::size_t i = 0; i < count; ++i) to[i] = bytes[i] != std::byte{0};
  } else if constexpr (std::is_same_v<From, T>) {
    if (count > 0) std::memcpy(to, bytes.data(), bytes.size());
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      From value;
      std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
      to[i] = static_cast<T>(static_cast<float>(value));
    }
  }
}

/// to[i] = element i of a tensor whose type T holds.
template <Stored T>
void copy_elements(const StoredTensor& tensor, T* to) {
  if (tensor.dtype == dtype_of<T>()) return copy_as<T>(tensor.bytes, to);
  if constexpr (Accumulator<T>) {
    if (tensor.dtype == Dtype::kF16) copy_as<Eigen::half>(tensor.bytes, to);
    if (tensor.dtype == Dtype::kBF16) copy_as<Eigen::bfloat16>(tensor.bytes, to);
    if (tensor.dtype == Dtype::kF32) copy_as<float>(tensor.bytes, to);
  }
}

}  // namespace detail

inline void Safetensors::adopt(detail::SafetensorsHeader header, const std::byte* data) {
  for (auto& [name, entry] : header.tensors) {
    const auto [begin, end] = entry.offsets;
    tensors_.emplace_hint(tensors_.end(), name,
                          StoredTensor{entry.dtype,
                                       std::move(entry.shape),
                                       {data + begin, data + end},
                                       std::move(entry.unknown_dtype)});
  }
  metadata_ = std::move(header.metadata);
}

inline Safetensors Safetensors::parse(std::span<const std::byte> bytes,
                                      const SafetensorsOptions& options) {
  detail::expect_header_limit("Safetensors::parse", options);
  Safetensors file("bytes");
  detail::expect_safetensors(file.file_, bytes.size(),
                             {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const std::uint64_t length =
      detail::header_length(file.file_, bytes.data(), bytes.size(), options);
  const std::byte* const header = bytes.data() + sizeof length;
  const std::byte* const data = header + length;
  const auto data_size = static_cast<std::uint64_t>(bytes.size()) - sizeof length - length;
  detail::SafetensorsHeaderParser parser(
      {reinterpret_cast<const char*>(header), static_cast<std::size_t>(length)}, data_size,
      file.file_, options);
  file.adopt(parser.parse(), data);
  return file;
}

inline Safetensors Safetensors::read(const std::filesystem::path& path,
                                     const SafetensorsOptions& options) {
  detail::expect_header_limit("Safetensors::read", options);
  detail::InputFile file(path);
  detail::SafetensorsHeader header = detail::read_safetensors_header(file, options);
  Safetensors result(file.name());
  result.data_ = file.read_rest();
  result.adopt(std::move(header), result.data_.get());
  return result;
}

inline const StoredTensor& Safetensors::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    fail(SafetensorsFault::kNoTensor, "no tensor " + detail::printable(name),
         "one of that name among " + std::to_string(tensors_.size()));
  }
  return found->second;
}

template <Stored T>
const StoredTensor& Safetensors::tensor_as(std::string_view name) const {
  const StoredTensor& tensor = this->tensor(name);
  if (!detail::holds<T>(tensor.dtype)) {
    const bool unknown = tensor.dtype == Dtype::kUnknown;
    fail(unknown ? SafetensorsFault::kUnknownDtype : SafetensorsFault::kConversion,
         "tensor " + detail::printable(name) + " of " +
             detail::dtype_text(tensor.dtype, tensor.unknown_dtype),
         unknown ? "a type that is known: F64, F32, F16, BF16, I64, I32, U8 or BOOL"
                 : "a type whose numbers are exact in " + std::string(dtype_name(dtype_of<T>())));
  }
  return tensor;
}

template <Stored T>
void Safetensors::copy_to(std::string_view name, std::span<T> out) const {
  const StoredTensor& tensor = tensor_as<T>(name);
  if (out.size() != static_cast<std::size_t>(tensor.size())) {
    detail::fail_shape("Safetensors::copy_to", "out",
                       "has " + std::to_string(out.size()) + " elements",
                       std::to_string(tensor.size()) + " of tensor " + detail::printable(name));
  }
  detail::copy_elements(tensor, out.data());
}

template <Scalar T>
Matrix<T> Safetensors::matrix(std::string_view name) const {
  const StoredTensor& tensor = tensor_as<T>(name);
  const std::vector<Index>& shape = tensor.shape;
  if (shape.empty() || shape.size() > 2) {
    fail(SafetensorsFault::kRank,
         "tensor " + detail::printable(name) + " of shape " + detail::shape_text(shape),
         "[rows, cols] or [cols]");
  }
  Matrix<T> result(shape.size() == 1 ? 1 : shape[0], shape.back());
  copy_to(name, std::span<T>(result.data(), static_cast<std::size_t>(result.size())));
  return result;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
