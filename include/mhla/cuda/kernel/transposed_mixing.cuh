#pragma once

/// \file
/// Mixing matrices for gradients: the transpose, and for the causal form both matrices without
/// coefficients on and above the diagonal:
///
///     strict     m_ib, 0 where b >= i            only in causal problems
///     transposed m_ib at [b, i]
///
/// A thread block has a row of a matrix. Device memory: m once, both results once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda {

struct TransposedMixingParameters {
  MixingArray mixing;
  std::int32_t rows;     ///< Mq
  std::int32_t columns;  ///< Mk
  bool causal;
  float* strict;      ///< [matrices, Mq, Mk], in causal problems
  float* transposed;  ///< [matrices, Mk, Mq]
  std::int32_t heads;
  std::int32_t matrices;  ///< number of matrices: 1, heads or pairs
};

struct TransposedMixingSm80 {
  using Params = TransposedMixingParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 8;
  static constexpr int kRegisters = 32;

  static constexpr unsigned grid(const Params& p, int) {
    return static_cast<unsigned>(p.matrices) * static_cast<unsigned>(p.rows);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const auto rows = static_cast<std::uint32_t>(p.rows);
    const auto matrix = static_cast<std::int32_t>(ptx::ctaid_x() / rows);
    const auto i = static_cast<std::int32_t>(ptx::ctaid_x() % rows);
    const float* const row = p.mixing.of(batch_head(matrix, p.heads)).row(i);
    const std::int64_t first = std::int64_t{matrix} * p.rows * p.columns;
    MHLA_CUDA_LOOP
    for (auto b = static_cast<std::int32_t>(ptx::tid_x()); b < p.columns; b += kThreads) {
      const bool counts = !p.causal || b < i;
      const float m = counts ? ptx::ld_global_nc_f32(row + b) : 0;
      if (p.causal) ptx::st_global_f32(p.strict + first + std::int64_t{i} * p.columns + b, m);
      ptx::st_global_f32(p.transposed + first + std::int64_t{b} * p.rows + i, m);
    }
  }
};

}  // namespace mhla::cuda
