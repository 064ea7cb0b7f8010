#pragma once

/// \file
/// Gradient of mixing coefficients by rows of floats, for denominators:
///
///     dm_ib = sum over the matrix's pairs of x_i . y_b     [C], both float
///
/// A thread has 4 x 4 coefficients, over the pairs of a chunk. ordered_sums.cuh adds the parts in
/// order. Shared memory: none.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda {

struct SumProductParameters {
  const float* x;  ///< [pairs, rows, C]
  const float* y;  ///< [pairs, columns, C]
  std::int32_t rows;
  std::int32_t columns;
  std::int32_t width;             ///< C
  std::int32_t pairs;             ///< pairs per matrix
  std::int32_t chunks;            ///< chunks of these pairs
  float* parts;                   ///< [chunks, rows, columns] of the first matrix
  std::int32_t matrices = 1;      ///< matrix g has pairs g, g + matrices, ...
  std::int64_t matrix_parts = 0;  ///< numbers from a matrix's parts to the next
};

struct SumProductsSm80 {
  using Params = SumProductParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 64;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 8;
  static constexpr int kRegisters = 96;

  /// Tiles of 32 x 32 coefficients, one per thread block.
  static constexpr std::int32_t kTile = 32;
  static MHLA_HOST_DEVICE constexpr std::int32_t tiles(const Params& p) {
    return ((p.rows - 1) / kTile + 1) * ((p.columns - 1) / kTile + 1);
  }
  static constexpr unsigned grid(const Params& p, int) {
    return static_cast<unsigned>(p.matrices * p.chunks) * static_cast<unsigned>(tiles(p));
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const auto index = static_cast<std::int32_t>(ptx::ctaid_x());
    const auto thread = static_cast<std::int32_t>(ptx::tid_x());
    const std::int32_t tile = index % tiles(p), chunks = index / tiles(p);
    const std::int32_t matrix = chunks / p.chunks, chunk = chunks % p.chunks;
    const std::int32_t across = (p.columns - 1) / kTile + 1;
    const std::int32_t row = tile / across * kTile + thread / 8 * 4;
    const std::int32_t column = tile % across * kTile + thread % 8 * 4;
    if (row >= p.rows || column >= p.columns) return;
    float sums[4][4] = {};
    MHLA_CUDA_LOOP
    for (std::int64_t n = std::int64_t{chunk} * p.pairs / p.chunks;
         n < std::int64_t{chunk + 1} * p.pairs / p.chunks; ++n) {
      add_pair(p, matrix + n * p.matrices, row, column, sums);
    }
    float* const to = p.parts + matrix * p.matrix_parts + std::int64_t{chunk} * p.rows * p.columns;
    MHLA_CUDA_UNROLL
    for (std::int32_t i = 0; i < 4; ++i) {
      MHLA_CUDA_UNROLL
      for (std::int32_t j = 0; j < 4; ++j) {
        if (row + i < p.rows && column + j < p.columns) {
          ptx::st_global_f32(to + std::int64_t{row + i} * p.columns + column + j, sums[i][j]);
        }
      }
    }
  }

 private:
  static MHLA_DEVICE void add_pair(const Params& p, std::int64_t pair, std::int32_t row,
                                   std::int32_t column, float (&sums)[4][4]) {
    const auto at = [&](const float* data, std::int32_t count, std::int32_t r) {
      return data + (pair * count + (r < count ? r : count - 1)) * p.width;
    };
    const float *x[4], *y[4];
    MHLA_CUDA_UNROLL
    for (std::int32_t i = 0; i < 4; ++i) {
      x[i] = at(p.x, p.rows, row + i);
      y[i] = at(p.y, p.columns, column + i);
    }
    MHLA_CUDA_LOOP
    for (std::int32_t c = 0; c < p.width; ++c) {
      float x_values[4], y_values[4];
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) {
        x_values[i] = ptx::ld_global_nc_f32(x[i] + c);
        y_values[i] = ptx::ld_global_nc_f32(y[i] + c);
      }
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) {
        MHLA_CUDA_UNROLL
        for (int j = 0; j < 4; ++j) sums[i][j] += x_values[i] * y_values[j];
      }
    }
  }
};

}  // namespace mhla::cuda
