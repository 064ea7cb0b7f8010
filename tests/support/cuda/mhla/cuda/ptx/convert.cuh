#pragma once

/// \file
/// Emulation of ptx/convert.cuh. exp2 is rounded to nearest.

#include <cmath>
#include <cstdint>

#include "emulator/numbers.hpp"
#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

struct bfloat16 {
  std::uint16_t bits;
};
struct half {
  std::uint16_t bits;
};

}  // namespace mhla::cuda

namespace mhla::cuda::ptx {

template <class T>
MHLA_DEVICE std::uint32_t pack(float low, float high);
template <>
MHLA_DEVICE std::uint32_t pack<bfloat16>(float low, float high) {
  return emulator::to_bfloat16(low) | std::uint32_t{emulator::to_bfloat16(high)} << 16;
}
template <>
MHLA_DEVICE std::uint32_t pack<half>(float low, float high) {
  return emulator::to_half(low) | std::uint32_t{emulator::to_half(high)} << 16;
}

template <class T>
MHLA_DEVICE float low(std::uint32_t pair);
template <>
MHLA_DEVICE float low<bfloat16>(std::uint32_t pair) {
  return emulator::from_bfloat16(static_cast<std::uint16_t>(pair));
}
template <>
MHLA_DEVICE float low<half>(std::uint32_t pair) {
  return emulator::from_half(static_cast<std::uint16_t>(pair));
}

template <class T>
MHLA_DEVICE float high(std::uint32_t pair);
template <>
MHLA_DEVICE float high<bfloat16>(std::uint32_t pair) {
  return emulator::from_bfloat16(static_cast<std::uint16_t>(pair >> 16));
}
template <>
MHLA_DEVICE float high<half>(std::uint32_t pair) {
  return emulator::from_half(static_cast<std::uint16_t>(pair >> 16));
}

MHLA_DEVICE float max_or_nan(float x, float y) { return emulator::max_or_nan(x, y); }
MHLA_DEVICE float exp2(float x) { return static_cast<float>(std::exp2(static_cast<double>(x))); }

}  // namespace mhla::cuda::ptx
