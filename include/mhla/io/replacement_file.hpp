#pragma once

/// \file
/// Writes files whose name never refers to a partial one.

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <system_error>

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <sys/stat.h>
#elif __has_include(<unistd.h>)
#include <unistd.h>
#endif

#include "mhla/core/arch.hpp"
#include "mhla/io/safetensors_format.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Creates a file for writing; null if it exists.
inline std::FILE* create_file(const std::filesystem::path& path) {
#if defined(_WIN32)
  // By its descriptor: not every C library of Windows knows the mode x.
  const int file = _wopen(path.c_str(), _O_CREAT | _O_EXCL | _O_WRONLY | _O_BINARY, _S_IWRITE);
  return file < 0 ? nullptr : _fdopen(file, "wb");
#else
  return std::fopen(path.c_str(), "wbx");
#endif
}

/// Hands what has been flushed to the disk, where the system has a call for it; false if it fails.
inline bool sync_file([[maybe_unused]] std::FILE* file) {
#if defined(_WIN32)
  return _commit(_fileno(file)) == 0;
#elif __has_include(<unistd.h>)
  return fsync(fileno(file)) == 0;
#else
  return true;
#endif
}

/// A file written beside `target` that takes its place when complete.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::filesystem::path& target) : target_(target) {
    std::random_device random;
    constexpr int kAttempts = 16;  // each at one name of 2^32
    for (int attempt = 0; attempt < kAttempts && file_ == nullptr; ++attempt) {
      path_ = target;
      path_.concat(".").concat(std::to_string(random())).concat(".tmp");
      errno = 0;
      file_.reset(create_file(path_));
      if (file_ == nullptr && errno != EEXIST) break;
    }
    if (file_ == nullptr) fail("cannot be created: ", errno);
  }
  ~ReplacementFile() { remove(); }
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  void append(const void* data, std::size_t size) {
    if (size != 0 && std::fwrite(data, 1, size, file_.get()) != size) {
      fail("cannot be written: ", errno);
    }
  }

  /// Syncs before it renames, so that not even a loss of power leaves a partial file.
  void replace_target() {
    if (std::fflush(file_.get()) != 0) fail("cannot be written: ", errno);
    if (!sync_file(file_.get())) fail("cannot be written: ", errno);
    if (std::fclose(file_.release()) != 0) fail("cannot be written: ", errno);
    std::error_code error;
    std::filesystem::rename(path_, target_, error);
    if (error) fail("cannot be put in place: ", error.value());
    path_.clear();
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void remove() {
    file_.reset();
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }

  [[noreturn]] void fail(const std::string& what, int code) {
    const std::string reason = std::generic_category().message(code);
    fail_safetensors(target_.string(), SafetensorsFault::kFile, std::nullopt,
                     "a file that " + what + reason, "a place to write to");
  }

  std::filesystem::path target_, path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
