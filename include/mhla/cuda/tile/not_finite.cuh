#pragma once

/// \file
/// Whether a warp holds numbers that are infinite or NaN: those with all ones in the exponent.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"

namespace mhla::cuda {

/// Bit 15 is set if the lower number of a pair is infinite or NaN, bit 31 for the upper one. The
/// other bits mean nothing.
template <class T>
MHLA_HOST_DEVICE constexpr std::uint32_t not_finite_bits(std::uint32_t pair) {
  // All ones in the exponent carry into the sign bit when its lowest bit is added.
  constexpr std::uint32_t kExponent = std::is_same_v<T, bfloat16> ? 0x7F807F80u : 0x7C007C00u;
  constexpr std::uint32_t kLowest = std::is_same_v<T, bfloat16> ? 0x00800080u : 0x04000400u;
  return (pair & kExponent) + kLowest;
}

/// True in all threads of the warp if bit 15 or 31 is set in one of them. All call together.
MHLA_DEVICE bool any_not_finite(std::uint32_t bits) {
  return ptx::any_of_warp((bits & 0x80008000u) != 0);
}

}  // namespace mhla::cuda
