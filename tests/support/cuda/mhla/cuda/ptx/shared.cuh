#pragma once

/// \file
/// ptx/shared.cuh in the emulator. Inlined, so that the log of bank conflicts distinguishes the
/// kernel's calls.

#include <cstdint>

#include "emulator/accesses.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

std::uint32_t shared_begin();

template <class X>
[[gnu::always_inline]] MHLA_DEVICE X emulated_load(std::uint32_t address) {
  const X x = emulator::ld_shared<X>(address);
  emulator::return_here();
  return x;
}
[[gnu::always_inline]] MHLA_DEVICE std::uint32_t ld_shared(std::uint32_t address) {
  return emulated_load<std::uint32_t>(address);
}
[[gnu::always_inline]] MHLA_DEVICE float ld_shared_f32(std::uint32_t address) {
  return emulated_load<float>(address);
}
[[gnu::always_inline]] MHLA_DEVICE Words2 ld_shared_v2(std::uint32_t address) {
  return emulated_load<Words2>(address);
}
[[gnu::always_inline]] MHLA_DEVICE Words4 ld_shared_v4(std::uint32_t address) {
  return emulated_load<Words4>(address);
}

template <class X>
[[gnu::always_inline]] MHLA_DEVICE void emulated_store(std::uint32_t address, X x) {
  emulator::st_shared(address, x);
  emulator::return_here();
}
[[gnu::always_inline]] MHLA_DEVICE void st_shared(std::uint32_t address, std::uint32_t value) {
  emulated_store(address, value);
}
[[gnu::always_inline]] MHLA_DEVICE void st_shared_f32(std::uint32_t address, float value) {
  emulated_store(address, value);
}
[[gnu::always_inline]] MHLA_DEVICE void st_shared_v4(std::uint32_t address, Words4 w) {
  emulated_store(address, w);
}

}  // namespace mhla::cuda::ptx
