#pragma once

/// \file
/// Barriers of a block and of a warp, values exchanged in a warp, and the order of kernels.
/// PTX ISA: barrier.cta, bar.warp.sync, shfl.sync, vote.sync, griddepcontrol.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

/// Synchronises all threads of the block: each sees what the others wrote before.
MHLA_DEVICE void bar_sync() { asm volatile("barrier.cta.sync 0;" ::: "memory"); }

/// Synchronises `threads` threads (whole warps) at barrier `id`, 1 to 15.
MHLA_DEVICE void bar_sync(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Synchronises all threads of the warp.
MHLA_DEVICE void bar_warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

/// Returns the x of thread (lane ^ mask) of the warp. All threads of the warp call it together.
MHLA_DEVICE float shfl_bfly(float x, std::uint32_t mask) {
  float y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(y) : "f"(x), "r"(mask));
  return y;
}

/// Returns the x of thread `lane` of the warp, 0 to 31. All threads of the warp call it together.
MHLA_DEVICE std::uint32_t shfl_idx(std::uint32_t x, std::uint32_t lane) {
  std::uint32_t y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(y) : "r"(x), "r"(lane));
  return y;
}

/// Returns true if x is true in any thread of the warp. All threads of the warp call it together.
MHLA_DEVICE bool vote_any(bool x) {
  std::uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred value, any;\n"
      "setp.ne.u32 value, %1, 0;\n"
      "vote.sync.any.pred any, value, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(static_cast<std::uint32_t>(x)));
  return any != 0;
}

/// Waits for the end of the previous kernels and makes their writes visible. A kernel that starts
/// with Start::kEarly (launch/stages.cuh) calls it before it first accesses what they read or
/// write. It reads such data by coherent loads or tensor copies. On sm_80 every kernel begins after
/// the previous one has ended, and the function does nothing.
MHLA_DEVICE void griddepcontrol_wait() {
  if constexpr (kArch == Arch::kSm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Lets the next kernel begin once a thread of each block has called, or the block has ended. A
/// kernel that began early itself first calls griddepcontrol_wait.
MHLA_DEVICE void griddepcontrol_launch_dependents() {
  if constexpr (kArch == Arch::kSm90a) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
}

}  // namespace mhla::cuda::ptx
