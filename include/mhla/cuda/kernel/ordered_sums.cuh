#pragma once

/// \file
/// Sums parts that thread blocks of another kernel wrote, in a fixed order:
///
///     y_ib = sum_n x_n,ib     0 where b > i with `lower`, and own_n,i added where b = i
///
/// Eight threads share each number: thread s adds the parts s, s + 8, ... Their sums are added in
/// pairs.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda {

struct OrderedSumParameters {
  const float* parts;  ///< [count, rows, columns]
  std::int32_t count;
  std::int32_t rows;
  std::int32_t columns;
  bool lower;
  const float* intra_parts;  ///< [intra_count, rows]
  std::int32_t intra_count;
  float* sums;          ///< [rows, columns]
  std::int64_t stride;  ///< numbers from one row of sums to the next
};

struct OrderedSumsSm80 {
  using Params = OrderedSumParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 8;
  static constexpr int kRegisters = 64;

  static constexpr unsigned grid(const Params& p, int) {
    return (static_cast<unsigned>(p.rows) * static_cast<unsigned>(p.columns) - 1) / kNumbers + 1;
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const std::uint32_t thread = ptx::tid_x(), sharer = thread % 32 / 4;
    const std::uint32_t index = ptx::ctaid_x() * kNumbers + thread / 32 * 4 + thread % 4;
    const std::int32_t row = static_cast<std::int32_t>(index) / p.columns;
    const std::int32_t column = static_cast<std::int32_t>(index) % p.columns;
    const bool exists = row < p.rows;
    float sum = 0;
    if (exists && !(p.lower && column >= row)) {
      sum = of_parts(p.parts + index, std::int64_t{p.rows} * p.columns, p.count, sharer);
    }
    if (exists && p.intra_count > 0 && column == row) {
      sum += of_parts(p.intra_parts + row, p.rows, p.intra_count, sharer);
    }
    MHLA_CUDA_UNROLL
    for (std::uint32_t mask = 4; mask < 32; mask *= 2) sum += ptx::shfl_bfly(sum, mask);
    if (exists && sharer == 0) ptx::st_global_f32(p.sums + row * p.stride + column, sum);
  }

 private:
  static constexpr std::uint32_t kNumbers = kThreads / 8;  // numbers per thread block

  static MHLA_DEVICE float of_parts(const float* from, std::int64_t stride, std::int32_t count,
                                    std::uint32_t sharer) {
    float sum = 0;
    for (auto n = static_cast<std::int32_t>(sharer); n < count; n += 8) {
      sum += ptx::ld_global_nc_f32(from + n * stride);
    }
    return sum;
  }
};

}  // namespace mhla::cuda
