#pragma once

/// \file
/// Mixtures of rows of floats, one row per block:
///
///     y_i = sum_b m_ib x_b     [C], in the order of b
///
/// A thread has kRows rows i of one column, a thread block 128 columns.
/// Device memory: x once per kRows rows of y, y once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda {

struct MixedSumParameters {
  const float* x;  ///< [pairs, columns, C]
  float* y;        ///< [pairs, rows, C]
  MixingArray mixing;
  std::int32_t rows;
  std::int32_t columns;
  std::int32_t width;  ///< C
  std::int32_t heads;
};

struct MixedSumsSm80 {
  using Params = MixedSumParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 8;
  static constexpr int kRegisters = 64;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * row_groups(p) * column_groups(p);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const std::uint32_t groups = row_groups(p), parts = column_groups(p);
    const auto c = static_cast<std::int32_t>(ptx::ctaid_x() % parts * kThreads + ptx::tid_x());
    const auto first = static_cast<std::int32_t>(ptx::ctaid_x() / parts % groups * kRows);
    const std::int64_t pair = ptx::ctaid_x() / (parts * groups);
    if (c >= p.width) return;
    const MixingArray mixing = p.mixing.of(batch_head(static_cast<std::int32_t>(pair), p.heads));
    const float* const x = p.x + pair * p.columns * p.width + c;
    float sums[kRows] = {};
    MHLA_CUDA_LOOP
    for (std::int32_t b = 0; b < p.columns; ++b) {
      const float value = ptx::ld_global_nc_f32(x + std::int64_t{b} * p.width);
      MHLA_CUDA_UNROLL
      for (std::int32_t r = 0; r < kRows; ++r) {
        const std::int32_t i = first + r < p.rows ? first + r : p.rows - 1;
        sums[r] += ptx::ld_global_nc_f32(mixing.row(i) + b) * value;
      }
    }
    MHLA_CUDA_UNROLL
    for (std::int32_t r = 0; r < kRows; ++r) {
      if (first + r < p.rows) {
        ptx::st_global_f32(p.y + (pair * p.rows + first + r) * p.width + c, sums[r]);
      }
    }
  }

 private:
  static constexpr std::int32_t kRows = 8;
  static MHLA_HOST_DEVICE constexpr unsigned row_groups(const Params& p) {
    return (static_cast<unsigned>(p.rows) - 1) / kRows + 1;
  }
  static MHLA_HOST_DEVICE constexpr unsigned column_groups(const Params& p) {
    return (static_cast<unsigned>(p.width) - 1) / kThreads + 1;
  }
};

}  // namespace mhla::cuda
