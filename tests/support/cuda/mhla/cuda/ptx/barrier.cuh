#pragma once

/// \file
/// Emulation of ptx/barrier.cuh.

#include <cstdint>

#include "emulator/barriers.hpp"
#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

MHLA_DEVICE void meet_block() { emulator::meet_block(); }
MHLA_DEVICE void meet(std::uint32_t id, std::uint32_t threads) { emulator::meet(id, threads); }
MHLA_DEVICE void pass(std::uint32_t id, std::uint32_t threads) { emulator::pass(id, threads); }
MHLA_DEVICE void meet_warp() { emulator::meet_warp(); }
MHLA_DEVICE float shuffle_xor(float x, std::uint32_t mask) {
  return emulator::shuffle_xor(x, mask);
}
MHLA_DEVICE bool any_of_warp(bool x) { return emulator::any_of_warp(x); }

}  // namespace mhla::cuda::ptx
