#pragma once

/// \file
/// ptx/matrix.cuh in the emulator.

#include <cstdint>

#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

Words4 load_matrices_4(std::uint32_t row);
Words4 load_matrices_4_transposed(std::uint32_t row);
Words2 load_matrices_2(std::uint32_t row);
Words2 load_matrices_2_transposed(std::uint32_t row);

}  // namespace mhla::cuda::ptx
