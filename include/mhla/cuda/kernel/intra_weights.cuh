#pragma once

/// \file
/// Weights of the token's own block where a mixing matrix is a sum of decaying terms:
///
///     m_ii = sum_r a_r     the same for every i
///
/// A thread sums the terms of a matrix.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda {

struct IntraWeightParameters {
  DecayArray terms;
  float* weights;  ///< [matrices]
};

/// The weights as mixing matrices for kernels that read their diagonals alone. Each row begins one
/// number before the previous one, so that m_ii has the same address for every i.
/// \param before  blocks of the sequence before that of row 0
constexpr MixingArray intra_mixing(const float* weights, Matrices matrices, std::int32_t heads,
                                   std::int32_t before = 0) {
  MixingArray array{weights - before, -1, before};
  if (matrices != Matrices::kShared) array.head_stride = 1;
  if (matrices == Matrices::kPerItemAndHead) array.item_stride = heads;
  return array;
}

struct IntraWeightsSm80 {
  using Params = IntraWeightParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 8;
  static constexpr int kRegisters = 32;

  static constexpr unsigned grid(const Params& p, int) {
    return (static_cast<unsigned>(p.terms.matrices) - 1) / kThreads + 1;
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const auto matrix = static_cast<std::int32_t>(ptx::ctaid_x() * kThreads + ptx::tid_x());
    if (matrix >= p.terms.matrices) return;
    const float* const weights = p.terms.of(matrix).row(0);
    float sum = 0;
    MHLA_CUDA_LOOP
    for (std::int32_t r = 0; r < p.terms.count; ++r) sum += ptx::ld_global_nc_f32(weights + r);
    ptx::st_global_f32(p.weights + matrix, sum);
  }
};

}  // namespace mhla::cuda
