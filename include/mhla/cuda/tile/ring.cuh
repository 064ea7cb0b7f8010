#pragma once

/// \file
/// A ring of slots in shared memory. Producers (one thread by tensor copies, or warps by stores)
/// fill slots, and consumer warps read them. Each slot has two barriers. `full` ends a phase when
/// the slot's bytes have arrived, or every producer warp has committed. `empty` ends a phase when
/// every consumer warp has released the slot.
///
///     producer     wait empty, expect bytes on full, load boxes    next slot
///        or        wait empty, write, commit                       next slot
///     consumer     wait full, read, release                        next slot
///
/// Every consumer waits for every slot before it releases the slot, even if it does not use it.
/// Otherwise it could run ahead and arrive twice in a phase.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace mhla::cuda {

/// Position of a thread in a ring.
struct RingCursor {
  std::uint32_t slot = 0;
  std::uint32_t parity = 0;  ///< parity of the phase that fills the slot

  /// Returns the cursor `slots` slots further on, at most once around a ring of `count`.
  MHLA_HOST_DEVICE constexpr RingCursor after(std::uint32_t slots, std::uint32_t count) const {
    const std::uint32_t sum = slot + slots;
    return sum < count ? RingCursor{sum, parity} : RingCursor{sum - count, parity ^ 1};
  }
};

struct Ring {
  static constexpr std::uint32_t kBarrierBytes = 16;  ///< bytes of a slot's barriers

  std::uint32_t begin;       ///< shared address of the slots
  std::uint32_t slot_bytes;  ///< a multiple of 1024; of 128 if no box is swizzled
  std::uint32_t barriers;    ///< shared address, kBarrierBytes per slot
  std::uint32_t count;       ///< number of slots

  MHLA_HOST_DEVICE constexpr std::uint32_t slot(RingCursor at) const {
    return begin + at.slot * slot_bytes;
  }
  MHLA_HOST_DEVICE constexpr std::uint32_t full(RingCursor at) const {
    return barriers + at.slot * kBarrierBytes;
  }
  MHLA_HOST_DEVICE constexpr std::uint32_t empty(RingCursor at) const { return full(at) + 8; }

  /// Initialises the barriers for `readers` consumer warps, and for `writers` producer warps or one
  /// loading thread. One thread calls, before fence_mbarrier_init.
  MHLA_DEVICE void init_barriers(std::uint32_t readers, std::uint32_t writers = 1) const {
    for (std::uint32_t i = 0; i < count; ++i) {
      ptx::mbarrier_init(full({i, 0}), writers);
      ptx::mbarrier_init(empty({i, 0}), readers);
    }
  }

  /// Waits until all consumers have released the slot.
  MHLA_DEVICE void producer_wait(RingCursor at) const {
    ptx::mbarrier_wait(empty(at), at.parity ^ 1);
  }

  /// Waits until all consumers have released the slot, and announces `bytes` bytes of loads.
  MHLA_DEVICE void producer_acquire(RingCursor at, std::uint32_t bytes) const {
    producer_wait(at);
    ptx::mbarrier_arrive_expect_tx(full(at), bytes);
  }

  /// Commits a slot that the warp has written. All its threads call together, after their last
  /// write and the fences that it needs.
  MHLA_DEVICE void producer_commit(RingCursor at, std::uint32_t lane) const {
    ptx::bar_warp_sync();
    if (lane == 0) ptx::mbarrier_arrive(full(at));
  }

  /// Waits until the slot is full.
  MHLA_DEVICE void consumer_wait(RingCursor at) const { ptx::mbarrier_wait(full(at), at.parity); }

  /// Releases a slot that the warp has read. All its threads call together, after their last
  /// access.
  MHLA_DEVICE void consumer_release(RingCursor at, std::uint32_t lane) const {
    consumer_release<1>(at, lane);
  }

  /// Releases kCount slots from `at` on.
  template <int kCount>
  MHLA_DEVICE void consumer_wait(RingCursor at) const {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kCount; ++i) consumer_wait(at.after(i, count));
  }
  template <int kCount>
  MHLA_DEVICE void consumer_release(RingCursor at, std::uint32_t lane) const {
    ptx::bar_warp_sync();
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (lane == 0) ptx::mbarrier_arrive(empty(at.after(i, count)));
    }
  }
};

/// Rows of a box of kColumns columns whose panels are in consecutive slots of a ring.
template <int kColumns_>
struct RingBox {
  static constexpr int kColumns = kColumns_;
  static constexpr int kPieces = kColumns / 8;
  static constexpr int kPanels = kColumns / box_columns(kColumns);
  using Panel = SharedTile<8, box_columns(kColumns)>;
  static constexpr std::uint32_t kRowBytes = Panel::kColumns * 2;

  std::uint32_t panels[kPanels];  ///< shared addresses of the first row

  /// The box whose first panel is in slot `at`, from row `row`, a multiple of 8, on.
  MHLA_DEVICE RingBox(const Ring& ring, RingCursor at, std::uint32_t row) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kPanels; ++i) {
      panels[i] = ring.slot(at.after(i, ring.count)) + row * kRowBytes;
    }
  }
  MHLA_DEVICE std::uint32_t piece(std::uint32_t row, std::uint32_t piece) const {
    return Panel{panels[piece / Panel::kPieces]}.piece(row, piece % Panel::kPieces);
  }
};

}  // namespace mhla::cuda
