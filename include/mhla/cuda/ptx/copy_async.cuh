#pragma once

/// \file
/// Asynchronous copies from device to shared memory. PTX ISA: cp.async.
/// After cp_async_wait_group a thread sees its own copies. Other threads see them after a further
/// barrier.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

/// Starts a copy of 16 bytes: the first `bytes` (0 or 16) from memory, the others zero. With 0
/// nothing is read, but `from` must still be a valid address.
MHLA_DEVICE void cp_async_16(std::uint32_t to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

/// Makes a group of the thread's copies since its last group.
MHLA_DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kPending of the thread's groups are in flight.
template <int kPending>
MHLA_DEVICE void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace mhla::cuda::ptx
