#pragma once

/// \file
/// Emulation of ptx/index.cuh.

#include <cstdint>

#include "emulator/block.hpp"
#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::ptx {

MHLA_DEVICE std::uint32_t thread_index() { return emulator::current().who(); }
MHLA_DEVICE std::uint32_t block_index_x() { return emulator::current().place.block.x; }
MHLA_DEVICE std::uint32_t block_index_y() { return emulator::current().place.block.y; }
MHLA_DEVICE std::uint32_t block_index_z() { return emulator::current().place.block.z; }
MHLA_DEVICE std::uint32_t block_count_x() { return emulator::current().grid.x; }

}  // namespace mhla::cuda::ptx
