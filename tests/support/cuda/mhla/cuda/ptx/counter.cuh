#pragma once

/// \file
/// ptx/counter.cuh in the emulator.

#include <cstdint>

namespace mhla::cuda::ptx {

std::uint32_t atom_add(std::uint32_t* counter);
void red_add_release(std::uint32_t* counter);
void wait_acquire(const std::uint32_t* counter, std::uint32_t count);

}  // namespace mhla::cuda::ptx
