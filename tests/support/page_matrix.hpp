#pragma once

/// \file
/// A matrix at the end, or the beginning, of readable memory. A read or write beyond its last
/// number, or before its first, ends the program.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>

#include "mhla/core/matrix.hpp"

namespace mhla::test {

/// Position of the numbers in their pages.
enum class PageSide { kBegin, kEnd };

template <class T>
class PageMatrix {
 public:
  /// Copies a view's numbers, row by row.
  PageMatrix(const MatrixView<const T>& values, PageSide side)
      : rows_(values.rows), cols_(values.cols) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = static_cast<std::size_t>(rows_ * cols_) * sizeof(T);
    const std::size_t inside = (bytes / page + 1) * page;
    bytes_ = inside + 2 * page;
    void* const all = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    all_ = static_cast<std::byte*>(all);
    if (mprotect(all_ + page, inside, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    data_ = reinterpret_cast<T*>(all_ + page + (side == PageSide::kEnd ? inside - bytes : 0));
    for (Index r = 0; r < rows_; ++r) {
      for (Index c = 0; c < cols_; ++c) data_[r * cols_ + c] = values(r, c);
    }
  }
  PageMatrix(const PageMatrix&) = delete;
  PageMatrix& operator=(const PageMatrix&) = delete;
  ~PageMatrix() { munmap(all_, bytes_); }

  MatrixView<T> view() const { return {data_, rows_, cols_, cols_}; }
  T* data() const { return data_; }

 private:
  Index rows_, cols_;
  std::size_t bytes_ = 0;
  std::byte* all_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace mhla::test
