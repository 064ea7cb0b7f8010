#pragma once

/// \file
/// Emulation of ptx/mma.cuh.

#include <cstdint>

#include "emulator/matrices.hpp"
#include "emulator/numbers.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"

namespace mhla::cuda::ptx {

template <class T>
MHLA_DEVICE void multiply_add_16(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                 std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                 std::uint32_t b1);
template <>
MHLA_DEVICE void multiply_add_16<bfloat16>(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                           std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                           std::uint32_t b1) {
  emulator::multiply_add<16>(c, {a0, a1, a2, a3}, {b0, b1}, &emulator::from_bfloat16, 0);
}
template <>
MHLA_DEVICE void multiply_add_16<half>(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                       std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                       std::uint32_t b1) {
  emulator::multiply_add<16>(c, {a0, a1, a2, a3}, {b0, b1}, &emulator::from_half, 1);
}

template <class T>
MHLA_DEVICE void multiply_add_8(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                std::uint32_t b0);
template <>
MHLA_DEVICE void multiply_add_8<bfloat16>(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                          std::uint32_t b0) {
  emulator::multiply_add<8>(c, {a0, a1}, {b0}, &emulator::from_bfloat16, 0);
}
template <>
MHLA_DEVICE void multiply_add_8<half>(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                      std::uint32_t b0) {
  emulator::multiply_add<8>(c, {a0, a1}, {b0}, &emulator::from_half, 1);
}

}  // namespace mhla::cuda::ptx
