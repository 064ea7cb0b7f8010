#pragma once

/// \file
/// Memory of tensors and workspaces. It begins at a cache line, so that rows of whole lines are
/// read in whole lines. Large memory begins at a large page, and requests large pages from the
/// system.
///
/// Rows of one head lie a page or more apart. Reading a row takes a walk through the page table,
/// which has two levels on a virtual machine. Linux gives large pages to memory that requests them
/// if /sys/kernel/mm/transparent_hugepage/enabled says madvise, or to all memory if it says always.

#include <cstddef>
#include <limits>
#include <new>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

/// Alignment of every buffer: a cache line, and the widest vector.
inline constexpr Index kBufferAlignment = 64;

/// Size of a large page on x86-64, and on Arm with small pages of 4 KB.
inline constexpr std::size_t kLargePage = std::size_t{2} << 20;

}  // namespace detail

/// An allocator for containers of the standard library. A std::vector with it can be lent as a
/// workspace, or hold tensors. It takes at most twice the memory; untouched pages take none.
template <class T>
struct Allocator {
  using value_type = T;

  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>& /*other*/) {}  // NOLINT(google-explicit-constructor)

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
      throw std::bad_array_new_length();
    }
    const std::size_t bytes = count * sizeof(T);
    void* const memory = ::operator new(bytes, alignment(bytes));
    // Only whole pages: the rest of the last page may belong to other memory.
    if (is_large(bytes)) detail::ask_for_large_pages(memory, bytes & ~(detail::kLargePage - 1));
    return static_cast<T*>(memory);
  }
  void deallocate(T* p, std::size_t count) { ::operator delete(p, alignment(count * sizeof(T))); }
  bool operator==(const Allocator& /*other*/) const { return true; }

 private:
  static constexpr bool is_large(std::size_t bytes) { return bytes >= detail::kLargePage; }
  static constexpr std::align_val_t alignment(std::size_t bytes) {
    return std::align_val_t{is_large(bytes) ? detail::kLargePage
                                            : std::size_t{detail::kBufferAlignment}};
  }
};

}  // namespace MHLA_TARGET
}  // namespace mhla
