#pragma once

/// \file
/// Barriers in shared memory that count arrivals and bytes of tensor copies. PTX ISA: mbarrier,
/// sm_90. A barrier has 8 bytes, aligned to 8. Its phases alternate in parity, beginning with 0. A
/// phase ends when all expected arrivals and bytes have come.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

/// Initialises a barrier that expects `arrivals` arrivals per phase. One thread calls.
MHLA_DEVICE void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to other threads and to tensor copies. The thread that
/// initialises them calls it, then all threads call bar_sync.
MHLA_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives at the barrier.
MHLA_DEVICE void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives at the barrier, and makes the phase wait for `bytes` more bytes of copies.
MHLA_DEVICE void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}

/// Waits until the phase of that parity has ended. With parity 1 a new barrier does not wait.
MHLA_DEVICE void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace mhla::cuda::ptx
