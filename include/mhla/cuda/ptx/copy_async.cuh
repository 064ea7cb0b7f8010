#pragma once

/// \file
/// Copies from device to shared memory that run beside the program. PTX ISA: cp.async.
/// A thread sees what its own copies brought after cp_async_wait_group, the others after a barrier
/// too.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

/// Starts a copy of 16 bytes: the first `bytes` (0 or 16) from memory, the others zero. With 0
/// nothing is read, but `from` is an address still.
MHLA_DEVICE void cp_async_16(std::uint32_t to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

/// Makes a group of the thread's copies since the last group.
MHLA_DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kPending of the thread's latest groups are still under way.
template <int kPending>
MHLA_DEVICE void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace mhla::cuda::ptx
