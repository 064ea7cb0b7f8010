#pragma once

/// \file
/// Writes files such that a name never refers to a partial file.

#include <fcntl.h>
#include <sys/stat.h>
#if defined(_WIN32)
#include <io.h>
#else
#include <unistd.h>
#endif

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <system_error>

#include "mhla/core/arch.hpp"
#include "mhla/io/safetensors_format.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Creates a file for writing, accessible to its owner alone if `secret`; null if it exists.
inline std::FILE* create_file(const std::filesystem::path& path, [[maybe_unused]] bool secret) {
#if defined(_WIN32)
  const int file = _wopen(path.c_str(), _O_CREAT | _O_EXCL | _O_WRONLY | _O_BINARY, _S_IWRITE);
  return file < 0 ? nullptr : _fdopen(file, "wb");
#else
  const int file =
      ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, secret ? 0600 : 0666);
  if (file < 0) return nullptr;
  std::FILE* const stream = fdopen(file, "wb");
  if (stream == nullptr) {  // no memory
    const int code = errno;
    ::close(file);
    ::unlink(path.c_str());
    errno = code;
  }
  return stream;
#endif
}

/// Writes flushed data to the disk; false on failure.
inline bool sync_file(std::FILE* file) {
#if defined(_WIN32)
  return _commit(_fileno(file)) == 0;
#else
  return fsync(fileno(file)) == 0;
#endif
}

/// Gives a file the mode of the file `like`, and its owner and group if the system allows it. False
/// if the mode cannot be set. Windows has no modes.
inline bool copy_mode([[maybe_unused]] std::FILE* file,
                      [[maybe_unused]] const std::filesystem::path& like) {
#if defined(_WIN32)
  return true;
#else
  struct ::stat old;
  if (::stat(like.c_str(), &old) != 0) return false;
  const int to = fileno(file);
  // Users other than the superuser may change the group at most.
  [[maybe_unused]] const bool owned =
      fchown(to, old.st_uid, old.st_gid) == 0 || fchown(to, geteuid(), old.st_gid) == 0;
  return fchmod(to, old.st_mode & 0777) == 0;
#endif
}

/// Returns the file that `path` refers to through any symbolic links. It need not exist.
inline std::filesystem::path follow_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as Linux
  std::error_code ignored;
  for (int links = 0; links < kMostLinks && std::filesystem::is_symlink(path, ignored); ++links) {
    path = path.parent_path() / std::filesystem::read_symlink(path, ignored);
  }
  return path;
}

/// A file written next to `target`, or next to the file that its symbolic links lead to. When
/// complete, it replaces that file and takes its mode.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::filesystem::path& target)
      : name_(path_text(target)), target_(follow_links(target)) {
    using Type = std::filesystem::file_type;
    std::error_code error;
    const Type type = std::filesystem::status(target_, error).type();
    replaces_ = type == Type::regular;
    if (!replaces_ && type != Type::not_found) {
      fail("cannot be replaced: " + (error ? error.message() : "it is no regular file"));
    }
    std::random_device random;
    constexpr int kAttempts = 16;  // each with one of 2^32 names
    for (int attempt = 0; attempt < kAttempts && file_ == nullptr; ++attempt) {
      // Not derived from the target's name, which may have the largest allowed length.
      path_ = target_.parent_path() / (std::to_string(random()) + ".tmp");
      errno = 0;
      file_.reset(create_file(path_, replaces_));
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
    if (replaces_ && !copy_mode(file_.get(), target_)) fail("cannot be given its mode: ", errno);
    if (!sync_file(file_.get())) fail("cannot be written: ", errno);
    if (std::fclose(file_.release()) != 0) fail("cannot be written: ", errno);
    std::error_code error;
    std::filesystem::rename(path_, target_, error);
    if (error) fail("cannot be put in place: " + error.message());
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

  [[noreturn]] void fail(const std::string& what, int code) const {
    fail(what + std::generic_category().message(code));
  }
  [[noreturn]] void fail(const std::string& what) const {
    fail_safetensors(name_, SafetensorsFault::kFile, std::nullopt, "a file that " + what,
                     "a place to write to");
  }

  std::string name_;  // as given by the caller
  std::filesystem::path target_, path_;
  bool replaces_ = false;  // an existing file
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
