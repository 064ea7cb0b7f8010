#pragma once

/// \file
/// Scratch memory from the caller: forms carve their buffers out of one span and allocate nothing.
/// One layout function serves twice. An empty Arena counts bytes (`workspace_bytes`), and an Arena
/// over the caller's span hands out pointers, so the two cannot disagree.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>

#include "mhla/core/allocator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/refused.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Memory that a caller lends for one call, with any alignment and content. Large memory is fastest
/// as a std::vector<std::byte, Allocator<std::byte>> (allocator.hpp).
using Workspace = std::span<std::byte>;

/// A Workspace as an option of a call. A static assertion refuses elements other than bytes.
struct LentMemory : Workspace {
  using span::span;
  constexpr LentMemory() = default;
  constexpr LentMemory(Workspace bytes) : span(bytes) {}  // NOLINT(google-explicit-constructor)
  template <std::ranges::contiguous_range R>
  requires(!std::same_as<std::ranges::range_value_t<R>, std::byte>)
      LentMemory(const R&, detail::Refused<detail::Mistake::kBytes, R> = {});
};

namespace detail {

/// Returns a row stride >= count, an odd number of cache lines, so that rows do not alias in a
/// cache.
template <class A>
constexpr Index unaliased_stride(Index count) {
  constexpr Index kLine = kBufferAlignment / static_cast<Index>(sizeof(A));
  const Index lines = ceil_div(count, kLine);
  return product_or_largest(lines | 1, kLine);
}

/// Hands out buffers one after another; without a base it only counts.
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::byte* base) : base_(base + before_line(base)) {}

  /// Bytes from `base` to the first cache line that begins there, fewer than a line.
  static Index before_line(const std::byte* base) {
    const auto misaligned = reinterpret_cast<std::uintptr_t>(base) % kBufferAlignment;
    return misaligned == 0 ? 0 : kBufferAlignment - static_cast<Index>(misaligned);
  }

  /// Takes memory for the product of `sizes` elements. Counting, which comes first, checks for
  /// overflow.
  template <class A>
  MHLA_INLINE A* take(const char* function, std::initializer_list<Index> sizes) {
    constexpr Index kSize = sizeof(A);
    if (base_ == nullptr) {
      count(function, sizes, kSize);
      return nullptr;
    }
    Index bytes = kSize;
    for (const Index size : sizes) bytes *= size;
    A* const buffer = reinterpret_cast<A*>(base_ + used_);
    used_ += round_up(bytes, kBufferAlignment);
    return buffer;
  }
  template <class A>
  MHLA_INLINE A* take(const char* function, Index count) {
    return take<A>(function, {count});
  }

  /// Bytes that a caller must lend, at any alignment.
  std::size_t bytes() const {
    return used_ == 0 ? 0 : static_cast<std::size_t>(used_ + kBufferAlignment);
  }

 private:
  MHLA_NOINLINE void count(const char* function, std::initializer_list<Index> sizes, Index size) {
    const Index numbers = checked_product(function, "workspace", sizes);
    const Index bytes = checked_product(function, "workspace", {numbers, size});
    if (bytes > std::numeric_limits<Index>::max() - used_ - 2 * kBufferAlignment) {
      fail_shape(function, "workspace", "needs more than fits Index",
                 "sizes that memory could hold");
    }
    used_ += round_up(bytes, kBufferAlignment);
  }

  std::byte* base_ = nullptr;
  Index used_ = 0;
};

/// Returns the bytes that layout(arena) takes.
template <class Layout>
std::size_t counted_bytes(Layout&& layout) {
  Arena counting;
  static_cast<void>(layout(counting));
  return counting.bytes();
}

/// One W per worker, with buffers on separate cache lines. Made once, not per block.
template <class W>
class Workers {
  static_assert(std::is_trivially_destructible_v<W> && alignof(W) <= kBufferAlignment);

 public:
  /// \param make  makes a W whose buffers come from an Arena
  template <class Make>
  Workers(const char* function, Arena& arena, Index workers, Make&& make) {
    Arena counting;
    static_cast<void>(make(counting));
    const Index bytes = static_cast<Index>(counting.bytes());
    all_ = arena.take<W>(function, workers);
    std::byte* const memory = arena.take<std::byte>(function, {workers, bytes});
    if (all_ == nullptr) return;  // bytes are only counted
    for (Index w = 0; w < workers; ++w) {
      Arena worker_arena(memory + w * bytes);
      ::new (all_ + w) W(make(worker_arena));
    }
  }
  const W& operator[](Index worker) const { return all_[worker]; }

 private:
  W* all_ = nullptr;
};

/// Throws unless `lent` has at least `bytes` bytes.
inline void expect_workspace(const char* function, Workspace lent, std::size_t bytes) {
  if (lent.size() < bytes) {
    fail_option(function, "workspace", "has " + std::to_string(lent.size()) + " bytes",
                "at least " + std::to_string(bytes) + " (see workspace_bytes)");
  }
}

/// Throws unless `kept` (Call::kept) is empty or has at least `bytes` bytes.
inline void expect_kept(const char* function, Workspace kept, std::size_t bytes) {
  if (!kept.empty() && kept.size() < bytes) {
    fail_option(function, "kept", "has " + std::to_string(kept.size()) + " bytes",
                "none or at least " + std::to_string(bytes) + " (see kept_bytes)");
  }
}

/// Mark of memory of `bytes` bytes that a forward pass has written.
/// \param form  differs between forms that keep other numbers
inline std::uint64_t kept_mark(std::size_t bytes, std::uint64_t form) {
  return 0x6D686C616B657074 ^ bytes ^ form << 56;
}
/// Address of the mark, before or after the numbers, where no Arena reaches.
/// \param before  bytes before the numbers
inline std::byte* kept_mark_in(Workspace kept, std::size_t bytes, Index before) {
  constexpr std::size_t kMark = sizeof(std::uint64_t);
  return kept.data() + (before < static_cast<Index>(kMark) ? bytes - 1 - kMark : 0);
}
/// Marks memory that a forward pass has written. Kept data starts at the buffer's first cache line.
/// The last byte stores the offset, so copies at other addresses stay valid. The mark distinguishes
/// kept data from memory that no forward pass of these sizes has written.
/// \param mark  kept_mark(bytes, form), or 0 for none
inline void mark_kept(Workspace kept, std::size_t bytes, std::uint64_t mark) {
  if (kept.empty() || bytes == 0) return;
  const Index before = Arena::before_line(kept.data());
  kept[bytes - 1] = static_cast<std::byte>(before);
  std::memcpy(kept_mark_in(kept, bytes, before), &mark, sizeof(mark));
}
/// Checks memory for a forward pass, and removes its mark: the pass may throw.
/// \throws as expect_kept
inline void begin_kept(const char* function, Workspace kept, std::size_t bytes) {
  expect_kept(function, kept, bytes);
  mark_kept(kept, bytes, 0);
}
/// Checks that the mark is `expected`, and moves the numbers of a copy to the first cache line.
/// \throws as expect_kept, and option_error if the mark is not there.
inline void find_kept(const char* function, Workspace kept, std::size_t bytes,
                      std::uint64_t expected) {
  expect_kept(function, kept, bytes);
  if (kept.empty() || bytes == 0) return;
  const auto from = static_cast<Index>(kept[bytes - 1]), to = Arena::before_line(kept.data());
  std::uint64_t mark = 0;
  if (from < kBufferAlignment) std::memcpy(&mark, kept_mark_in(kept, bytes, from), sizeof(mark));
  if (mark != expected) {
    fail_option(function, "kept", "has not been written", "what the forward pass kept");
  }
  if (from == to) return;
  std::memmove(kept.data() + to, kept.data() + from,
               bytes - static_cast<std::size_t>(kBufferAlignment));
  mark_kept(kept, bytes, mark);
}

/// The caller's workspace, or allocated memory if the caller lends none.
class Scratch {
 public:
  /// \throws option_error if the caller lends memory, but less than `bytes`.
  Scratch(const char* function, Workspace lent, std::size_t bytes) {
    if (lent.empty() && bytes > 0) {
      allocated_ = {Allocator<std::byte>().allocate(bytes), Release{bytes}};
      lent = {allocated_.get(), bytes};
    }
    expect_workspace(function, lent, bytes);
    lent_ = lent;
    arena_ = Arena(lent.data());
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Arena& arena() { return arena_; }
  Workspace bytes() const { return lent_; }

 private:
  struct Release {
    std::size_t bytes;

    void operator()(std::byte* memory) const { Allocator<std::byte>().deallocate(memory, bytes); }
  };

  std::unique_ptr<std::byte[], Release> allocated_;
  Workspace lent_;
  Arena arena_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
