#pragma once

/// \file
/// Emulation of ptx/shared.cuh. Inlined, so that the log of bank conflicts sees the calls of the
/// kernel apart.

#include <cstdint>

#include "emulator/accesses.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

MHLA_DEVICE std::uint32_t shared_begin() { return emulator::SharedMemory::kBegin; }

[[gnu::always_inline]] MHLA_DEVICE std::uint32_t load_shared(std::uint32_t address) {
  const auto x = emulator::load_shared<std::uint32_t>(address);
  emulator::return_here();
  return x;
}
[[gnu::always_inline]] MHLA_DEVICE float load_shared_float(std::uint32_t address) {
  const auto x = emulator::load_shared<float>(address);
  emulator::return_here();
  return x;
}
[[gnu::always_inline]] MHLA_DEVICE Words2 load_shared_2(std::uint32_t address) {
  const auto x = emulator::load_shared<Words2>(address);
  emulator::return_here();
  return x;
}
[[gnu::always_inline]] MHLA_DEVICE Words4 load_shared_4(std::uint32_t address) {
  const auto x = emulator::load_shared<Words4>(address);
  emulator::return_here();
  return x;
}

[[gnu::always_inline]] MHLA_DEVICE void store_shared(std::uint32_t address, std::uint32_t value) {
  emulator::store_shared(address, value);
  emulator::return_here();
}
[[gnu::always_inline]] MHLA_DEVICE void store_shared_float(std::uint32_t address, float value) {
  emulator::store_shared(address, value);
  emulator::return_here();
}
[[gnu::always_inline]] MHLA_DEVICE void store_shared_4(std::uint32_t address, Words4 w) {
  emulator::store_shared(address, w);
  emulator::return_here();
}

}  // namespace mhla::cuda::ptx
