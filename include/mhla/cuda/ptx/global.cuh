#pragma once

/// \file
/// Loads and stores of device memory. PTX ISA: ld.global, st.global.
/// Addresses are multiples of the size of what moves. Loads are of memory that no thread of the
/// grid writes, but for the ones named otherwise.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

/// 16 bytes that the grid reads once.
MHLA_DEVICE Words4 ld_global_nc_v4(const void* from) {
  Words4 w;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "l"(from));
  return w;
}

/// 16 bytes, kept in L1.
MHLA_DEVICE Words4 ld_global_nc_kept_v4(const void* from) {
  Words4 w;
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "l"(from));
  return w;
}

/// Two numbers of 16 bits, and of 32 bits, kept in the first cache.
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

/// A number, kept in the first cache.
MHLA_DEVICE float ld_global_nc_f32(const float* from) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(from));
  return value;
}

/// An index, kept in the first cache.
MHLA_DEVICE std::int32_t ld_global_nc_s32(const std::int32_t* from) {
  std::int32_t value;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

/// 16 bytes that this block may have written.
MHLA_DEVICE Words4 ld_global_v4(const void* from) {
  Words4 w;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "l"(from)
               : "memory");
  return w;
}

/// Two numbers of 16 bits that this thread may have written.
MHLA_DEVICE std::uint32_t ld_global(const void* from) {
  std::uint32_t word;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}

/// A number that this block, or the kernel before, may have written.
MHLA_DEVICE float ld_global_f32(const float* from) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}

/// A counter that this block may have written.
MHLA_DEVICE std::int64_t ld_global_s64(const std::int64_t* from) {
  std::int64_t value;
  asm volatile("ld.global.s64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

/// Brings a line to L2. PTX ISA: prefetch.
MHLA_DEVICE void prefetch_l2(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

MHLA_DEVICE void st_global_v4(void* to, Words4 w) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w.x[0]), "r"(w.x[1]),
               "r"(w.x[2]), "r"(w.x[3])
               : "memory");
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
