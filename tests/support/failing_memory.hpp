#pragma once

/// \file
/// Memory that fails on request, in programs with glibc and without a sanitizer that replaces
/// malloc. It counts the allocations that are not freed yet.

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <string>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MHLA_TEST_FAILS_MALLOC 1

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);
}

namespace mhla::test {

inline std::atomic<long> live_allocations{0};

/// Lets an allocation fail, of all threads, while it lives.
class FailingMemory {
 public:
  /// \param which  number of the allocation, from 0
  /// \param later  true if all later ones fail too
  FailingMemory(long which, bool later) {
    left_ = which;
    later_ = later;
    armed_ = true;
  }
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;
  ~FailingMemory() { armed_ = false; }

  /// True if an allocation has failed.
  static bool failed() { return left_ < 0; }
  static bool fails() {
    if (!armed_) return false;
    const long left = left_--;
    return left == 0 || (left < 0 && later_);
  }

 private:
  static inline std::atomic<bool> armed_{false}, later_{false};
  static inline std::atomic<long> left_{0};
};

inline void* counted(void* memory) {
  if (memory != nullptr) ++live_allocations;
  return memory;
}

}  // namespace mhla::test

extern "C" {
[[gnu::used]] inline void* malloc(std::size_t bytes) {
  using namespace mhla::test;
  return FailingMemory::fails() ? nullptr : counted(__libc_malloc(bytes));
}
[[gnu::used]] inline void* calloc(std::size_t count, std::size_t bytes) {
  using namespace mhla::test;
  return FailingMemory::fails() ? nullptr : counted(__libc_calloc(count, bytes));
}
[[gnu::used]] inline void* realloc(void* old, std::size_t bytes) {
  using namespace mhla::test;
  if (FailingMemory::fails()) return nullptr;
  void* const memory = __libc_realloc(old, bytes);
  return old == nullptr ? counted(memory) : memory;
}
[[gnu::used]] inline void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  using namespace mhla::test;
  return FailingMemory::fails() ? nullptr : counted(__libc_memalign(alignment, bytes));
}
[[gnu::used]] inline int posix_memalign(void** to, std::size_t alignment, std::size_t bytes) {
  void* const memory = aligned_alloc(alignment, bytes);
  if (memory == nullptr) return ENOMEM;
  *to = memory;
  return 0;
}
[[gnu::used]] inline void free(void* memory) {
  if (memory != nullptr) --mhla::test::live_allocations;
  __libc_free(memory);
}
}

namespace mhla::test {

/// An entry of the library. reset() prepares a call, and state() is what must not change if it
/// fails.
struct Entry {
  std::function<void()> call;
  std::function<void()> reset = [] {};
  std::function<std::string()> state = [] { return std::string(); };
};

/// Calls an entry, and lets each of its allocations fail, alone and with all later ones. The call
/// must throw and change nothing, or do all its work, and leak nothing.
inline void expect_safe(const char* name, const Entry& entry) {
  int cases = 0;
  entry.reset();
  entry.call();  // sets up what lives until the end of the program
  const std::string done = entry.state();
  for (const bool later : {false, true}) {
    for (long which = 0;; ++which, ++cases) {
      entry.reset();
      const std::string before = entry.state();
      const long live = live_allocations;
      bool failed = false, thrown = false;
      {
        const FailingMemory memory(which, later);
        try {
          entry.call();
        } catch (const std::exception&) {  // bad_alloc, or that the system lacks memory
          thrown = true;
        }
        failed = FailingMemory::failed();
      }
      if (!failed) break;
      const long left = live_allocations - live;
      EXPECT_EQ(left, 0) << name << ", allocation " << which << (later ? " and all later" : "");
      // A call may do without memory, as std::stable_sort does.
      EXPECT_TRUE(entry.state() == (thrown ? before : done))
          << name << (thrown ? " threw" : " returned") << " without allocation " << which;
      if (testing::Test::HasFailure()) break;
    }
  }
  std::cout << cases << " cases\n";
}

}  // namespace mhla::test

#endif
