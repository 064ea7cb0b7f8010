#pragma once

/// \file
/// Loads and stores of device memory. PTX ISA: ld.global, st.global.
/// Addresses are aligned to the size of the access. Unless the comment of a load says otherwise, no
/// thread of the grid writes that memory.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

/// Loads 16 bytes that the grid reads once.
MHLA_DEVICE Words4 ld_global_nc_v4(const void* from) {
  Words4 w;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "l"(from));
  return w;
}

/// Loads 16 bytes, and keeps them in L1.
MHLA_DEVICE Words4 ld_global_nc_kept_v4(const void* from) {
  Words4 w;
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "l"(from));
  return w;
}

/// Loads one word (two 16-bit numbers) or two words, and keeps them in L1.
MHLA_DEVICE std::uint32_t ld_global_nc(const void* from) {
  std::uint32_t word;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(word) : "l"(from));
  return word;
}
MHLA_DEVICE Words2 ld_global_nc_v2(const void* from) {
  Words2 w;
  asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];" : "=r"(w.x[0]), "=r"(w.x[1]) : "l"(from));
  return w;
}

/// Loads a float, and keeps it in L1.
MHLA_DEVICE float ld_global_nc_f32(const float* from) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(from));
  return value;
}

/// Loads an index, and keeps it in L1.
MHLA_DEVICE std::int32_t ld_global_nc_s32(const std::int32_t* from) {
  std::int32_t value;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

/// Loads a byte, and keeps it in L1.
MHLA_DEVICE std::uint32_t ld_global_nc_u8(const unsigned char* from) {
  std::uint32_t value;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

/// Loads 16 bytes that this block may have written.
MHLA_DEVICE Words4 ld_global_v4(const void* from) {
  Words4 w;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "l"(from)
               : "memory");
  return w;
}

/// Loads two 16-bit numbers that this thread may have written.
MHLA_DEVICE std::uint32_t ld_global(const void* from) {
  std::uint32_t word;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}

/// Loads a float that this block or the previous kernel may have written.
MHLA_DEVICE float ld_global_f32(const float* from) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}

/// Loads a counter that this block may have written.
MHLA_DEVICE std::int64_t ld_global_s64(const std::int64_t* from) {
  std::int64_t value;
  asm volatile("ld.global.s64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

/// Loads a line into L2. PTX ISA: prefetch.
MHLA_DEVICE void prefetch_l2(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

MHLA_DEVICE void st_global_v4(void* to, Words4 w) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w.x[0]), "r"(w.x[1]),
               "r"(w.x[2]), "r"(w.x[3])
               : "memory");
}

MHLA_DEVICE void st_global_v2(void* to, Words2 w) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(w.x[0]), "r"(w.x[1]) : "memory");
}

MHLA_DEVICE void st_global(void* to, std::uint32_t value) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

MHLA_DEVICE void st_global_f32(float* to, float value) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

MHLA_DEVICE void st_global_s64(std::int64_t* to, std::int64_t value) {
  asm volatile("st.global.s64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

}  // namespace mhla::cuda::ptx
