#pragma once

/// \file
/// ptx/global.cuh in the emulator.

#include <cstdint>

#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

Words4 load_global_4(const void* from);
float load_global_float(const float* from);

Words4 reload_global_4(const void* from);
float reload_global_float(const float* from);
std::int64_t reload_global_counter(const std::int64_t* from);

void store_global_4(void* to, Words4 w);
void store_global(void* to, std::uint32_t value);
void store_global_float(float* to, float value);
void store_global_counter(std::int64_t* to, std::int64_t value);

}  // namespace mhla::cuda::ptx
