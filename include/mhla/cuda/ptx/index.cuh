#pragma once

/// \file
/// Where a thread stands: special registers. PTX ISA, chapter "Special Registers".
/// Thread blocks are one-dimensional.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

/// Thread of the block.
MHLA_DEVICE std::uint32_t tid_x() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

/// Block of the grid, along x.
MHLA_DEVICE std::uint32_t ctaid_x() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

/// Blocks of the grid along x.
MHLA_DEVICE std::uint32_t nctaid_x() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(x));
  return x;
}

}  // namespace mhla::cuda::ptx
