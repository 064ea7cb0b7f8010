#pragma once

/// \file
/// The emulation of ptx/mbarrier.cuh.

#include <cstdint>

#include "emulator/async_barrier.hpp"
#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

MHLA_DEVICE void make_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
  emulator::current().part<emulator::CountingBarriers>().make(barrier, arrivals);
}

MHLA_DEVICE void publish_barriers() {
  emulator::current().part<emulator::CountingBarriers>().publish();
}

MHLA_DEVICE void arrive(std::uint32_t barrier) {
  emulator::current().part<emulator::CountingBarriers>().arrive(barrier, 0, "mbarrier arrival");
}

MHLA_DEVICE void arrive_and_expect(std::uint32_t barrier, std::uint32_t bytes) {
  emulator::current().part<emulator::CountingBarriers>().arrive(barrier, bytes, "mbarrier arrival");
}

MHLA_DEVICE void wait_for(std::uint32_t barrier, std::uint32_t parity) {
  emulator::current().part<emulator::CountingBarriers>().wait(barrier, parity);
}

}  // namespace mhla::cuda::ptx
