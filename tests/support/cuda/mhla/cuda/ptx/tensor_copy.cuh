#pragma once

/// \file
/// The emulation of ptx/tensor_copy.cuh.

#include <cstdint>

#include "emulator/async_box.hpp"
#include "emulator/async_tensor_copy.hpp"
#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

MHLA_DEVICE void load_box(std::uint32_t to, const TensorMap& map, const BoxOrigin& at,
                          std::uint32_t barrier) {
  emulator::load_box(to, map, at, barrier);
}

MHLA_DEVICE void store_box(const TensorMap& map, const BoxOrigin& at, std::uint32_t from) {
  emulator::current().part<emulator::TensorStores>().start(map, at, from);
}

MHLA_DEVICE void commit_stores() { emulator::current().part<emulator::TensorStores>().commit(); }

template <int kPending>
MHLA_DEVICE void wait_stores_read() {
  static_assert(kPending >= 0);
  emulator::current().part<emulator::TensorStores>().wait_read(kPending);
}

MHLA_DEVICE void prefetch_map(const TensorMap& map) { emulator::prefetch_map(map); }

MHLA_DEVICE void fence_async() {
  emulator::Block& block = emulator::current();
  block.clocks.fence(block.who());
}

}  // namespace mhla::cuda::ptx
