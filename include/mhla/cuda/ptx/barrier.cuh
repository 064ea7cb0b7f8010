#pragma once

/// \file
/// Barriers of the block and of the warp, values passed inside a warp, and the order of kernels.
/// PTX ISA: barrier.cta, bar.warp.sync, shfl.sync, vote.sync, griddepcontrol.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

/// All threads of the block meet; what each wrote before is seen by all after.
MHLA_DEVICE void bar_sync() { asm volatile("barrier.cta.sync 0;" ::: "memory"); }

/// `threads` threads (a multiple of 32, whole warps) meet at barrier `id`, 1 to 15.
MHLA_DEVICE void bar_sync(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// All threads of the warp meet.
MHLA_DEVICE void bar_warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

/// The x of thread (lane ^ mask) of the warp. All its threads call together.
MHLA_DEVICE float shfl_bfly(float x, std::uint32_t mask) {
  float y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(y) : "f"(x), "r"(mask));
  return y;
}

/// The x of thread `lane` of the warp, 0 to 31. All its threads call together.
MHLA_DEVICE std::uint32_t shfl_idx(std::uint32_t x, std::uint32_t lane) {
  std::uint32_t y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(y) : "r"(x), "r"(lane));
  return y;
}

/// Whether x is true in a thread of the warp. All its threads call together.
MHLA_DEVICE bool vote_any(bool x) {
  std::uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred own, any;\n"
      "setp.ne.u32 own, %1, 0;\n"
      "vote.sync.any.pred any, own, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(static_cast<std::uint32_t>(x)));
  return any != 0;
}

/// Waits until the kernels before have ended, and sees what they wrote: with Start::kEarly
/// (launch/stages.cuh), before the first access to what they write or read. That is loaded by
/// coherent loads or the copy engine. On sm_80 kernels begin after those before.
MHLA_DEVICE void griddepcontrol_wait() {
  if constexpr (kArch == Arch::kSm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// The next kernel may begin once a thread of each block has called, after griddepcontrol_wait
/// where it began early itself, or the block has ended.
MHLA_DEVICE void griddepcontrol_launch_dependents() {
  if constexpr (kArch == Arch::kSm90a) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
}

}  // namespace mhla::cuda::ptx
