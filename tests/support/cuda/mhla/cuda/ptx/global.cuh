#pragma once

/// \file
/// Emulation of ptx/global.cuh.

#include <cstdint>

#include "emulator/accesses.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

MHLA_DEVICE Words4 load_global_4(const void* from) {
  return emulator::load_global<Words4>(from, emulator::Read::kConstant);
}
MHLA_DEVICE std::uint32_t load_global(const void* from) {
  return emulator::load_global<std::uint32_t>(from, emulator::Read::kConstant);
}
MHLA_DEVICE float load_global_float(const float* from) {
  return emulator::load_global<float>(from, emulator::Read::kConstant);
}

MHLA_DEVICE Words4 reload_global_4(const void* from) {
  return emulator::load_global<Words4>(from, emulator::Read::kCoherent);
}
MHLA_DEVICE std::uint32_t reload_global(const void* from) {
  return emulator::load_global<std::uint32_t>(from, emulator::Read::kCoherent);
}
MHLA_DEVICE float reload_global_float(const float* from) {
  return emulator::load_global<float>(from, emulator::Read::kCoherent);
}
MHLA_DEVICE std::int64_t reload_global_counter(const std::int64_t* from) {
  return emulator::load_global<std::int64_t>(from, emulator::Read::kCoherent);
}

MHLA_DEVICE void store_global_4(void* to, Words4 w) { emulator::store_global(to, w); }
MHLA_DEVICE void store_global(void* to, std::uint32_t value) { emulator::store_global(to, value); }
MHLA_DEVICE void store_global_float(float* to, float value) { emulator::store_global(to, value); }
MHLA_DEVICE void store_global_counter(std::int64_t* to, std::int64_t value) {
  emulator::store_global(to, value);
}

}  // namespace mhla::cuda::ptx
