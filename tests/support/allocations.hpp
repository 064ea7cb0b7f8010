#pragma once

/// \file
/// Counts every call of malloc in a program, where this is possible: with glibc, without sanitizers
/// that replace malloc.

#include <atomic>
#include <cstdlib>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MHLA_TEST_COUNTS_MALLOC 1

extern "C" void* __libc_malloc(std::size_t);
inline std::atomic<long> calls_of_malloc{0};
extern "C" [[gnu::used]] inline void* malloc(std::size_t bytes) {
  ++calls_of_malloc;
  return __libc_malloc(bytes);
}

namespace mhla::test {

/// Counts malloc calls during a second call of f; the first call may set things up.
template <class F>
long allocations(F&& f) {
  f();
  const long before = calls_of_malloc;
  f();
  return calls_of_malloc - before;
}

}  // namespace mhla::test
#endif
