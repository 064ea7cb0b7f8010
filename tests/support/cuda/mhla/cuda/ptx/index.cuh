#pragma once

/// \file
/// ptx/index.cuh in the emulator.

#include <cstdint>

namespace mhla::cuda::ptx {

std::uint32_t thread_index();
std::uint32_t block_index_x();
std::uint32_t block_count_x();

}  // namespace mhla::cuda::ptx
