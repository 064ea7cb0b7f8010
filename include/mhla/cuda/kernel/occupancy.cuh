#pragma once

/// \file
/// Thread blocks that fit on a multiprocessor of sm_80 at a time.

#include <algorithm>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// Most registers per thread that let `blocks` thread blocks fit: 65536 in units of 8 per thread,
/// at most 255.
constexpr int register_limit(int threads, int blocks) {
  return std::min(65536 / (threads * blocks) / 8 * 8, 255);
}

/// Thread blocks that fit, at least 1, if each thread needs so many registers. Each of the four
/// schedulers has 512 registers for the threads of a lane, in units of 8. A thread block takes 1024
/// bytes of shared memory more than it asks for.
constexpr int resident_blocks(int threads, int registers, int shared_bytes) {
  const auto warps = [&](int blocks) { return (threads / 32 * blocks + 3) / 4; };
  int blocks = std::min((shared_limit(Arch::kSm80) + 1024) / (shared_bytes + 1024), 2048 / threads);
  while (blocks > 1 && 512 / warps(blocks) / 8 * 8 < registers) --blocks;
  return std::max(blocks, 1);
}

}  // namespace mhla::cuda
