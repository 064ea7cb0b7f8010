#pragma once

/// \file
/// ptx/copy_async.cuh in the emulator. Inlined for the log of bank conflicts, as in ptx/shared.cuh.

#include <cstdint>

#include "emulator/accesses.hpp"
#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

[[gnu::always_inline]] MHLA_DEVICE void cp_async_16(std::uint32_t to, const void* from,
                                                    std::uint32_t bytes) {
  emulator::cp_async_16(to, from, bytes);
  emulator::return_here();
}
void cp_async_commit_group();
template <int kPending>
MHLA_DEVICE void cp_async_wait_group() {
  emulator::cp_async_wait_group(kPending);
}

}  // namespace mhla::cuda::ptx
