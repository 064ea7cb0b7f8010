#pragma once

/// \file
/// Memory of tensors and workspaces. It begins with a cache line, so that rows of whole lines are
/// read in whole lines; where it is large, with a large page, and asks the system for such pages.
///
/// Rows of one head lie a page or more apart, so reading a row takes a walk through the page table,
/// which on a virtual machine is one of two levels. Linux gives large pages to what asks for them,
/// where /sys/kernel/mm/transparent_hugepage/enabled says madvise, or to all where it says always.

#include <cstddef>
#include <new>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

/// Every buffer starts at a multiple of this: a cache line, and the widest vector.
inline constexpr Index kBufferAlignment = 64;

/// A large page: of x86-64, and of Arm with small pages of 4 KB.
inline constexpr std::size_t kLargePage = std::size_t{2} << 20;

}  // namespace detail

/// Allocates as a container of the standard library wants it: a std::vector of it can be lent as a
/// workspace, or hold tensors. Never more than twice the memory; pages that are not touched take
/// none.
template <class T>
struct Allocator {
  using value_type = T;

  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>& /*other*/) {}  // NOLINT(google-explicit-constructor)

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    void* const memory = ::operator new(bytes, alignment(bytes));
    // Whole pages alone: what else lies on the last one is not ours.
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
