#pragma once

/// \file
/// A ring of slots in shared memory that one thread fills by tensor copies and other warps read.
/// Each slot has two barriers: `full` ends a phase when its bytes are here, `empty` when every
/// warp that reads the ring has given the slot back.
///
///     producer    wait empty, expect bytes on full, load boxes    next slot
///     reader      wait full, read, give back                      next slot
///
/// Every reader waits for every slot before it gives it back, even one that it has no use for:
/// otherwise it could run ahead and count twice in a phase.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"

namespace mhla::cuda {

/// How far a thread has come in a ring.
struct RingCursor {
  std::uint32_t slot = 0;
  std::uint32_t parity = 0;  ///< of the phase that fills the slot

  /// The cursor `slots` slots further on, at most once around a ring of `count`.
  MHLA_HOST_DEVICE constexpr RingCursor after(std::uint32_t slots, std::uint32_t count) const {
    const std::uint32_t sum = slot + slots;
    return sum < count ? RingCursor{sum, parity} : RingCursor{sum - count, parity ^ 1};
  }
};

struct Ring {
  static constexpr std::uint32_t kBarrierBytes = 16;  ///< of a slot

  std::uint32_t begin;       ///< shared address of the slots
  std::uint32_t slot_bytes;  ///< a multiple of 1024
  std::uint32_t barriers;    ///< shared address, kBarrierBytes a slot
  std::uint32_t count;       ///< slots

  MHLA_HOST_DEVICE constexpr std::uint32_t slot(RingCursor at) const {
    return begin + at.slot * slot_bytes;
  }
  MHLA_HOST_DEVICE constexpr std::uint32_t full(RingCursor at) const {
    return barriers + at.slot * kBarrierBytes;
  }
  MHLA_HOST_DEVICE constexpr std::uint32_t empty(RingCursor at) const { return full(at) + 8; }

  /// Makes the barriers for `warps` warps that read. One thread calls, before publish_barriers.
  MHLA_DEVICE void make_barriers(std::uint32_t warps) const {
    for (std::uint32_t i = 0; i < count; ++i) {
      ptx::make_barrier(full({i, 0}), 1);
      ptx::make_barrier(empty({i, 0}), warps);
    }
  }

  /// The producer waits until the slot is free, and says how many bytes it will load.
  MHLA_DEVICE void take(RingCursor at, std::uint32_t bytes) const {
    ptx::wait_for(empty(at), at.parity ^ 1);
    ptx::arrive_and_expect(full(at), bytes);
  }

  /// A reader waits for what was loaded.
  MHLA_DEVICE void wait(RingCursor at) const { ptx::wait_for(full(at), at.parity); }

  /// A warp gives the slot back. All its threads call together, after their last access.
  MHLA_DEVICE void give_back(RingCursor at, std::uint32_t lane) const {
    ptx::meet_warp();
    if (lane == 0) ptx::arrive(empty(at));
  }
};

}  // namespace mhla::cuda
