#pragma once

/// \file
/// Accesses of a thread whose bank conflicts are counted. The log matches accesses of a warp by
/// their return addresses. They are therefore called functions, each followed by return_here.

#include <cstdint>

namespace emulator {

/// Keeps the compiler from turning the preceding call into a jump.
[[gnu::always_inline]] inline void return_here() { asm volatile(""); }

/// X: 4, 8 or 16 bytes, as ptx/shared.cuh loads and stores them.
template <class X>
X ld_shared(std::uint32_t address);
template <class X>
void st_shared(std::uint32_t address, X value);

void cp_async_16(std::uint32_t to, const void* from, std::uint32_t bytes);
void cp_async_wait_group(int pending);
void cp_async_bulk_wait_group_read(int pending);

}  // namespace emulator
