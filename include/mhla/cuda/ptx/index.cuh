#pragma once

/// \file
/// Indices of threads and blocks. PTX ISA, chapter "Special Registers". Blocks and grids are
/// one-dimensional.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

/// Index of the thread in its block.
MHLA_DEVICE std::uint32_t tid_x() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

/// Index of the block in the grid.
MHLA_DEVICE std::uint32_t ctaid_x() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

/// Number of blocks of the grid.
MHLA_DEVICE std::uint32_t nctaid_x() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(x));
  return x;
}

}  // namespace mhla::cuda::ptx
