#pragma once

/// \file
/// ptx/copy_async.cuh in the emulator. Inlined for the log of bank conflicts, as ptx/shared.cuh.

#include <cstdint>

#include "emulator/accesses.hpp"
#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

[[gnu::always_inline]] MHLA_DEVICE void copy_16(std::uint32_t to, const void* from,
                                                std::uint32_t bytes) {
  emulator::copy_16(to, from, bytes);
  emulator::return_here();
}
void commit_copies();
template <int kPending>
MHLA_DEVICE void wait_copies() {
  emulator::wait_copies(kPending);
}

}  // namespace mhla::cuda::ptx
