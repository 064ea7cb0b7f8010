#pragma once

/// \file
/// Counters in device memory that thread blocks of a grid share. PTX ISA: atom.add, red.release,
/// ld.acquire, all at gpu scope.
///
/// A thread that is ordered after the writes of its block releases a counter. A thread of another
/// block waits until the counter has that release, and acquires the writes. Threads that are
/// ordered after the wait see them, by coherent loads or cp_async_16. Barriers order threads of a
/// block.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

/// Adds 1 and returns what the counter was. Orders nothing else.
MHLA_DEVICE std::uint32_t atom_add(std::uint32_t* counter) {
  std::uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

/// Adds 1, and releases what the thread is ordered after.
MHLA_DEVICE void red_add_release(std::uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

/// Waits until the counter is at least `count`, and acquires what was released until then. Blocks
/// that have not begun may never begin while this one waits.
MHLA_DEVICE void wait_acquire(const std::uint32_t* counter, std::uint32_t count) {
  std::uint32_t value;
  MHLA_CUDA_LOOP
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  } while (value < count);
}

}  // namespace mhla::cuda::ptx
