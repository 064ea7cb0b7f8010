#pragma once

/// \file
/// ptx/global.cuh in the emulator.

#include <cstdint>

#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

Words4 ld_global_nc_v4(const void* from);
Words4 ld_global_nc_kept_v4(const void* from);
std::uint32_t ld_global_nc(const void* from);
Words2 ld_global_nc_v2(const void* from);
float ld_global_nc_f32(const float* from);
std::int32_t ld_global_nc_s32(const std::int32_t* from);
std::uint32_t ld_global_nc_u8(const unsigned char* from);

Words4 ld_global_v4(const void* from);
std::uint32_t ld_global(const void* from);
float ld_global_f32(const float* from);
std::int64_t ld_global_s64(const std::int64_t* from);

inline void prefetch_l2(const void*) {}  // has no effect that a kernel can see

void st_global_v4(void* to, Words4 w);
void st_global_v2(void* to, Words2 w);
void st_global(void* to, std::uint32_t value);
void st_global_f32(float* to, float value);
void st_global_s64(std::int64_t* to, std::int64_t value);

}  // namespace mhla::cuda::ptx
