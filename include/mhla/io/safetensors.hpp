#pragma once

/// \file
/// Reads untrusted safetensors files; safetensors_writer.hpp, included here, writes them.
///
///     const auto file = mhla::Safetensors::read("layer.safetensors");
///     const mhla::Matrix<float> weight = file.matrix<float>("to_q.weight");
///
/// Sizes are checked before anything is allocated, the header is read by the rules of
/// safetensors_format.hpp, and the data only if the header describes all of it. Values are not
/// checked. Memory: the data, and the header while it is read.
/// Requires nlohmann_json (CMake: mhla::io, find_package(mhla COMPONENTS io)).

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
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

  /// All tensors, sorted by name. Their bytes live as long as this object, moved or not.
  const StoredTensors& tensors() const { return tensors_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }

  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  /// \throws safetensors_error if there is no such tensor.
  const StoredTensor& tensor(std::string_view name) const;

  /// Copies the elements of a tensor to `out`, row-major and exact: T is the type of the tensor or
  /// a wider one (float for F16 and BF16, double for these and F32). A BOOL is true unless 0.
  /// \throws safetensors_error if there is no such tensor or T cannot hold its type,
  /// shape_error unless `out` has the size of the tensor.
  template <Stored T>
  void copy_to(std::string_view name, std::span<T> out) const;

  /// A tensor [rows, cols] as a matrix, and a tensor [cols] as one row, exactly as copy_to does.
  /// \throws safetensors_error if there is no such tensor, it has another number of axes, or T
  /// cannot hold its type.
  template <Scalar T>
  Matrix<T> matrix(std::string_view name) const;

 private:
  struct FileCloser {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  explicit Safetensors(std::string file) : file_(std::move(file)) {}

  [[noreturn]] void fail(SafetensorsFault fault, const std::string& got,
                         const std::string& expected) const {
    detail::fail_safetensors(file_, fault, std::nullopt, got, expected);
  }
  void expect_size(std::uint64_t size) const;
  std::uint64_t header_length(const std::byte* first, std::uint64_t size,
                              const SafetensorsOptions& options) const;
  std::unique_ptr<std::byte[]> allocate(std::uint64_t size) const;
  void read_exactly(std::FILE* file, std::byte* to, std::uint64_t size) const;
  /// Takes over the tensors of a header, with their data at `data`.
  void adopt(detail::SafetensorsHeader header, const std::byte* data);

  std::string file_;
  std::unique_ptr<std::byte[]> data_;  // of a file that was read
  StoredTensors tensors_;
  SafetensorsMetadata metadata_;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Throws unless header_limit is in range.
inline void expect_header_limit(const char* function, const SafetensorsOptions& options) {
  if (options.header_limit > kSafetensorsMaxHeader) {
    fail_option(function, "header_limit", "is " + std::to_string(options.header_limit),
                "at most " + std::to_string(kSafetensorsMaxHeader));
  }
}

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

inline void Safetensors::expect_size(std::uint64_t size) const {
  if (size < 10) {
    fail(SafetensorsFault::kTooShort, std::to_string(size) + " bytes", "at least 10");
  }
}

inline std::uint64_t Safetensors::header_length(const std::byte* first, std::uint64_t size,
                                                const SafetensorsOptions& options) const {
  std::uint64_t length = 0;
  std::memcpy(&length, first, sizeof length);
  const std::string got = "a header of " + std::to_string(length) + " bytes";
  if (length > options.header_limit) {
    fail(SafetensorsFault::kHeaderTooLong, got,
         "at most " + std::to_string(options.header_limit) + " (header_limit)");
  }
  if (length > size - sizeof length) {
    fail(SafetensorsFault::kHeaderBeyondEnd, got,
         "at most " + std::to_string(size - sizeof length) + " of a file of " +
             std::to_string(size));
  }
  return length;
}

inline std::unique_ptr<std::byte[]> Safetensors::allocate(std::uint64_t size) const {
  std::unique_ptr<std::byte[]> memory;
  if (size <= static_cast<std::uint64_t>(PTRDIFF_MAX)) {
    memory.reset(new (std::nothrow) std::byte[static_cast<std::size_t>(size)]);
  }
  if (memory == nullptr) {
    fail(SafetensorsFault::kMemory, std::to_string(size) + " bytes", "what fits in memory");
  }
  return memory;
}

inline void Safetensors::read_exactly(std::FILE* file, std::byte* to, std::uint64_t size) const {
  errno = 0;
  const auto count = static_cast<std::size_t>(size);
  const std::size_t got = std::fread(to, 1, count, file);
  if (got == count) return;
  const std::string reason =
      std::ferror(file) != 0 ? std::generic_category().message(errno) : "the file became shorter";
  fail(SafetensorsFault::kFile, std::to_string(got) + " bytes (" + reason + ")",
       std::to_string(count) + " more bytes");
}

inline void Safetensors::adopt(detail::SafetensorsHeader header, const std::byte* data) {
  for (auto& [name, entry] : header.tensors) {
    const auto [begin, end] = entry.offsets;
    tensors_.emplace_hint(
        tensors_.end(), name,
        StoredTensor{entry.dtype, std::move(entry.shape), {data + begin, data + end}});
  }
  metadata_ = std::move(header.metadata);
}

inline Safetensors Safetensors::parse(std::span<const std::byte> bytes,
                                      const SafetensorsOptions& options) {
  detail::expect_header_limit("Safetensors::parse", options);
  Safetensors file("bytes");
  file.expect_size(bytes.size());
  const std::uint64_t length = file.header_length(bytes.data(), bytes.size(), options);
  const std::byte* const header = bytes.data() + sizeof length;
  const std::byte* const data = header + length;
  const auto data_size = static_cast<std::uint64_t>(bytes.size()) - sizeof length - length;
  file.adopt(detail::parse_safetensors_header(
                 {reinterpret_cast<const char*>(header), static_cast<std::size_t>(length)},
                 data_size, file.file_),
             data);
  return file;
}

inline Safetensors Safetensors::read(const std::filesystem::path& path,
                                     const SafetensorsOptions& options) {
  detail::expect_header_limit("Safetensors::read", options);
  Safetensors result(path.string());
  const auto fail_open = [&](const std::string& reason) {
    result.fail(SafetensorsFault::kFile, "no file that can be read (" + reason + ")",
                "a regular file");
  };
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);  // no pipe, no folder
  if (!regular) fail_open(error ? error.message() : "it is of another kind");
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (error) fail_open(error.message());
  result.expect_size(size);
  errno = 0;
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.string().c_str(), "rb"));
  if (file == nullptr) fail_open(std::generic_category().message(errno));
  std::setvbuf(file.get(), nullptr, _IONBF, 0);  // unbuffered: reads go straight to their target

  std::byte first[8];
  result.read_exactly(file.get(), first, sizeof first);
  const std::uint64_t length = result.header_length(first, size, options);
  const std::uint64_t data_size = size - sizeof first - length;
  detail::SafetensorsHeader header;
  {
    const std::unique_ptr<std::byte[]> text = result.allocate(length);
    result.read_exactly(file.get(), text.get(), length);
    header = detail::parse_safetensors_header(
        {reinterpret_cast<const char*>(text.get()), static_cast<std::size_t>(length)}, data_size,
        result.file_);
  }
  result.data_ = result.allocate(data_size);
  result.read_exactly(file.get(), result.data_.get(), data_size);
  if (std::fgetc(file.get()) != EOF) {
    result.fail(SafetensorsFault::kFile, "a file that became longer",
                std::to_string(size) + " bytes");
  }
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
void Safetensors::copy_to(std::string_view name, std::span<T> out) const {
  const StoredTensor& tensor = this->tensor(name);
  if (!detail::holds<T>(tensor.dtype)) {
    fail(SafetensorsFault::kConversion,
         "tensor " + detail::printable(name) + " of " + std::string(dtype_name(tensor.dtype)),
         "a type whose numbers are exact in " + std::string(dtype_name(dtype_of<T>())));
  }
  if (out.size() != static_cast<std::size_t>(tensor.size())) {
    detail::fail_shape("Safetensors::copy_to", "out",
                       "has " + std::to_string(out.size()) + " elements",
                       std::to_string(tensor.size()) + " of tensor " + detail::printable(name));
  }
  detail::copy_elements(tensor, out.data());
}

template <Scalar T>
Matrix<T> Safetensors::matrix(std::string_view name) const {
  const StoredTensor& tensor = this->tensor(name);
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
