#pragma once

/// \file
/// ptx/mma.cuh in the emulator.

#include <cstdint>

#include "mhla/cuda/ptx/convert.cuh"

namespace mhla::cuda::ptx {

template <class T>
void mma_m16n8k16(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                  std::uint32_t a3, std::uint32_t b0, std::uint32_t b1);
template <class T>
void mma_m16n8k8(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0);

}  // namespace mhla::cuda::ptx
