#pragma once

/// \file
/// ptx/barrier.cuh in the emulator.

#include <cstdint>

namespace mhla::cuda::ptx {

void bar_sync();
void bar_sync(std::uint32_t id, std::uint32_t threads);
void bar_warp_sync();
std::uint32_t shfl_idx(std::uint32_t x, std::uint32_t lane);
float shfl_bfly(float x, std::uint32_t mask);
bool vote_any(bool x);
void griddepcontrol_wait();
void griddepcontrol_launch_dependents();

}  // namespace mhla::cuda::ptx
