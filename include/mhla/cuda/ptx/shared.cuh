#pragma once

/// \file
/// Loads and stores of shared memory, by 32-bit address. PTX ISA: ld.shared, st.shared.
/// Addresses are aligned to the size of the access.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

/// Shared address of the block's dynamic shared memory: a multiple of 1024, as the swizzle of
/// tensor copies needs.
MHLA_DEVICE std::uint32_t shared_begin() {
  extern __shared__ __align__(1024) unsigned char mhla_shared_memory[];
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(mhla_shared_memory));
}

MHLA_DEVICE std::uint32_t ld_shared(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

MHLA_DEVICE float ld_shared_f32(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

MHLA_DEVICE Words2 ld_shared_v2(std::uint32_t address) {
  Words2 w;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(w.x[0]), "=r"(w.x[1])
               : "r"(address)
               : "memory");
  return w;
}

MHLA_DEVICE Words4 ld_shared_v4(std::uint32_t address) {
  Words4 w;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "r"(address)
               : "memory");
  return w;
}

MHLA_DEVICE void st_shared(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

MHLA_DEVICE void st_shared_f32(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

MHLA_DEVICE void st_shared_v4(std::uint32_t address, Words4 w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w.x[0]), "r"(w.x[1]),
               "r"(w.x[2]), "r"(w.x[3])
               : "memory");
}

}  // namespace mhla::cuda::ptx
