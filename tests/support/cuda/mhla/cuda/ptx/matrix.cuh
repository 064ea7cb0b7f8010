#pragma once

/// \file
/// Emulation of ptx/matrix.cuh.

#include <cstdint>

#include "emulator/matrices.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/words.cuh"

namespace mhla::cuda::ptx {

MHLA_DEVICE Words4 load_matrices_4(std::uint32_t row) {
  Words4 w;
  emulator::load_matrices(row, false, w.x);
  return w;
}
MHLA_DEVICE Words4 load_matrices_4_transposed(std::uint32_t row) {
  Words4 w;
  emulator::load_matrices(row, true, w.x);
  return w;
}
MHLA_DEVICE Words2 load_matrices_2(std::uint32_t row) {
  Words2 w;
  emulator::load_matrices(row, false, w.x);
  return w;
}
MHLA_DEVICE Words2 load_matrices_2_transposed(std::uint32_t row) {
  Words2 w;
  emulator::load_matrices(row, true, w.x);
  return w;
}

}  // namespace mhla::cuda::ptx
