#pragma once

/// \file
/// Untrusted files on disk, and the header of a safetensors file, read without its data.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/io/safetensors_format.hpp"
#include "mhla/io/safetensors_header.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Throws unless header_limit is in range.
inline void expect_header_limit(const char* function, const SafetensorsOptions& options) {
  if (options.header_limit > kSafetensorsMaxHeader) {
    fail_option(function, "header_limit", "is " + std::to_string(options.header_limit),
                "at most " + std::to_string(kSafetensorsMaxHeader));
  }
}

/// Throws if a file that begins with `text` has a format that is mistaken for safetensors.
inline void expect_no_other_format(const std::string& file, std::string_view text,
                                   const char* expected) {
  constexpr std::pair<std::string_view, const char*> kFormats[] = {
      {"version https://git-lfs", "a Git LFS pointer (git lfs pull fetches the file)"},
      {"pk\3\4", "a zip archive (.pt)"},
      {"\x80\2\x8a\n", "a pickle (old .pt)"},
      {"<!doctype", "an HTML page"},
      {"<!--", "an HTML page"},
      {"<html", "an HTML page"},
      {"<?xml", "an XML page"},
      {"gguf", "a GGUF file"},
  };
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n\xEF\xBB\xBF"), text.size()));
  const auto same = [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); };
  for (const auto& [begin, name] : kFormats) {
    if (text.size() < begin.size() || !std::equal(begin.begin(), begin.end(), text.begin(), same)) {
      continue;
    }
    fail_safetensors(file, SafetensorsFault::kOtherFormat, std::nullopt, name, expected);
  }
}

/// Throws unless a file of `size` bytes that begins with `text` may be a safetensors file.
inline void expect_safetensors(const std::string& file, std::uint64_t size, std::string_view text) {
  if (size < 10) {
    fail_safetensors(file, SafetensorsFault::kTooShort, std::nullopt,
                     std::to_string(size) + " bytes", "at least 10");
  }
  constexpr std::size_t kHeader = 8;
  if (text.size() > kHeader && text[kHeader] == '{') return;
  expect_no_other_format(file, text, "a safetensors file");
}

/// The length of a header, from the first 8 bytes of a file of `size` bytes.
inline std::uint64_t header_length(const std::string& file, const std::byte* first,
                                   std::uint64_t size, const SafetensorsOptions& options) {
  std::uint64_t length = 0;
  std::memcpy(&length, first, sizeof length);
  const auto fail = [&](SafetensorsFault fault, const std::string& expected) {
    fail_safetensors(file, fault, std::nullopt, "a header of " + std::to_string(length) + " bytes",
                     expected);
  };
  if (length > options.header_limit) {
    fail(SafetensorsFault::kHeaderTooLong,
         "at most " + std::to_string(options.header_limit) + " (header_limit)");
  }
  if (length > size - sizeof length) {
    fail(SafetensorsFault::kHeaderBeyondEnd, "at most " + std::to_string(size - sizeof length) +
                                                 " of a file of " + std::to_string(size));
  }
  return length;
}

/// A regular file, read from its beginning on.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }
  /// Number of bytes not yet read.
  std::uint64_t rest() const { return rest_; }

  /// Up to 64 bytes from the beginning, before any read.
  std::string first_bytes();

  void read(std::byte* to, std::uint64_t size);
  /// Reads the next `size` bytes.
  std::unique_ptr<std::byte[]> read(std::uint64_t size);
  /// Reads all remaining bytes. Throws if the file has become longer.
  std::unique_ptr<std::byte[]> read_rest();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  [[noreturn]] void fail(SafetensorsFault fault, const std::string& got,
                         const std::string& expected) const {
    fail_safetensors(name_, fault, std::nullopt, got, expected);
  }
  [[noreturn]] void fail_open(const std::string& reason) const {
    fail(SafetensorsFault::kFile, "no file that can be read (" + reason + ")", "a regular file");
  }

  std::string name_;
  std::uint64_t size_ = 0, rest_ = 0;
  std::unique_ptr<std::FILE, Close> file_;
};

/// Reads and checks a header. The data, the rest of the file, is not read.
inline SafetensorsHeader read_safetensors_header(InputFile& file,
                                                 const SafetensorsOptions& options) {
  expect_safetensors(file.name(), file.size(), file.first_bytes());
  std::byte first[8];
  file.read(first, sizeof first);
  const std::uint64_t length = header_length(file.name(), first, file.size(), options);
  const std::unique_ptr<std::byte[]> text = file.read(length);
  return SafetensorsHeaderParser(
             {reinterpret_cast<const char*>(text.get()), static_cast<std::size_t>(length)},
             file.rest(), file.name(), options)
      .parse();
}

// ------------------------------------------------------------------------------------------------

/// Opens a file for reading; null if that fails.
inline std::FILE* open_file(const std::filesystem::path& path) {
#if defined(_WIN32)
  return _wfopen(path.c_str(), L"rb");
#else
  return std::fopen(path.c_str(), "rb");
#endif
}

inline InputFile::InputFile(const std::filesystem::path& path) : name_(path_text(path)) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);  // no pipe, no folder
  if (!regular) fail_open(error ? error.message() : "it is of another kind");
  size_ = rest_ = std::filesystem::file_size(path, error);
  if (error) fail_open(error.message());
  errno = 0;
  file_.reset(open_file(path));
  if (file_ == nullptr) fail_open(std::generic_category().message(errno));
  std::setvbuf(file_.get(), nullptr, _IONBF, 0);  // unbuffered: reads go straight to their target
}

inline std::string InputFile::first_bytes() {
  char bytes[64];
  const std::size_t count = std::fread(bytes, 1, sizeof bytes, file_.get());
  std::rewind(file_.get());
  return {bytes, count};
}

inline void InputFile::read(std::byte* to, std::uint64_t size) {
  errno = 0;
  const auto count = static_cast<std::size_t>(size);
  const std::size_t got = std::fread(to, 1, count, file_.get());
  if (got != count) {
    const std::string reason = std::ferror(file_.get()) != 0
                                   ? std::generic_category().message(errno)
                                   : "the file became shorter";
    fail(SafetensorsFault::kFile, std::to_string(got) + " bytes (" + reason + ")",
         std::to_string(count) + " more bytes");
  }
  rest_ -= size;
}

inline std::unique_ptr<std::byte[]> InputFile::read(std::uint64_t size) {
  std::unique_ptr<std::byte[]> memory;
  if (size <= static_cast<std::uint64_t>(PTRDIFF_MAX)) {
    memory.reset(new (std::nothrow) std::byte[static_cast<std::size_t>(size)]);
  }
  if (memory == nullptr) {
    fail(SafetensorsFault::kMemory, std::to_string(size) + " bytes", "what fits in memory");
  }
  read(memory.get(), size);
  return memory;
}

inline std::unique_ptr<std::byte[]> InputFile::read_rest() {
  std::unique_ptr<std::byte[]> memory = read(rest_);
  if (std::fgetc(file_.get()) != EOF) {
    fail(SafetensorsFault::kFile, "a file that became longer", std::to_string(size_) + " bytes");
  }
  return memory;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
