#pragma once

/// \file
/// ptx/matrix.cuh in the emulator.

#include <cstdint>

#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

Words4 ldmatrix_x4(std::uint32_t row);
Words4 ldmatrix_x4_trans(std::uint32_t row);
Words2 ldmatrix_x2(std::uint32_t row);
Words2 ldmatrix_x2_trans(std::uint32_t row);

}  // namespace mhla::cuda::ptx
