#pragma once

/// \file
/// ptx/barrier.cuh in the emulator.

#include <cstdint>

namespace mhla::cuda::ptx {

void meet_block();
void meet(std::uint32_t id, std::uint32_t threads);
void meet_warp();
std::uint32_t shuffle(std::uint32_t x, std::uint32_t lane);
float shuffle_xor(float x, std::uint32_t mask);
bool any_of_warp(bool x);

}  // namespace mhla::cuda::ptx
