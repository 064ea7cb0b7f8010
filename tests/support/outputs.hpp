#pragma once

/// \file
/// Outputs and workspaces that reveal missing writes, and writes outside them.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla::test {

/// A matrix of NaN, none of which may remain in an output.
template <class T>
Matrix<T> unwritten(Index rows, Index cols) {
  return Matrix<T>::Constant(rows, cols, static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
}

/// The numbers of a view as a dense matrix.
template <class T>
Matrix<std::remove_const_t<T>> dense(const MatrixView<T>& m) {
  Matrix<std::remove_const_t<T>> all(m.rows, m.cols);
  for (Index r = 0; r < m.rows; ++r) {
    for (Index c = 0; c < m.cols; ++c) all(r, c) = m(r, c);
  }
  return all;
}

/// An arena over memory in which every number is NaN.
struct Memory {
  std::vector<std::byte> bytes;
  detail::Arena arena;

  explicit Memory(std::size_t size) : bytes(size, std::byte{0xFF}), arena(bytes.data()) {}
};

/// A workspace of exactly `bytes` bytes at an odd address, full of NaN, with guards at both ends.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(std::size_t bytes)
      : memory_(bytes + 2 * kGuard, std::byte{0xFF}), bytes_(bytes) {}
  Workspace get() { return Workspace(memory_).subspan(kGuard, bytes_); }
  bool intact() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (memory_[i] != std::byte{0xFF}) return false;
      if (memory_[memory_.size() - 1 - i] != std::byte{0xFF}) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 67;
  std::vector<std::byte> memory_;
  std::size_t bytes_;
};

/// A copy of bytes at another position in a cache line.
class MovedBytes {
 public:
  MovedBytes(std::span<const std::byte> bytes, std::size_t further)
      : memory_(bytes.size() + 2 * kLine, std::byte{0xFF}), bytes_(bytes.size()) {
    const auto in_line = [](const std::byte* p) {
      return reinterpret_cast<std::uintptr_t>(p) % kLine;
    };
    const std::size_t wanted = (in_line(bytes.data()) + further) % kLine;
    begin_ = (wanted + kLine - in_line(memory_.data())) % kLine;
    std::copy(bytes.begin(), bytes.end(), get().begin());
  }
  Workspace get() { return Workspace(memory_).subspan(begin_, bytes_); }
  bool intact() const {
    const auto untouched = [](std::byte b) { return b == std::byte{0xFF}; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(memory_.begin(), begin, untouched) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), untouched);
  }

 private:
  static constexpr std::size_t kLine = 64;
  std::vector<std::byte> memory_;
  std::size_t bytes_, begin_ = 0;
};

template <class T>
bool same_bits(const Matrix<T>& a, const Matrix<T>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         (a.size() == 0 ||
          std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(T)) == 0);
}

}  // namespace mhla::test
