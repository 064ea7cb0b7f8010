#pragma once

/// \file
/// Sums parts that thread blocks of another kernel wrote, in a fixed order:
///
///     y_ib = sum_n x_n,ib     0 outside of the pattern, and where b > i with `lower`; own_n,i is
///                             added where b = i
///
/// for every matrix y. Matrix g is that of batch item g / heads and head g % heads. Eight threads
/// share each number: thread s adds the parts s, s + 8, ... Their sums are added in pairs.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/pattern_bits.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"

namespace mhla::cuda {

struct OrderedSumParameters {
  const float* parts;  ///< [matrices, count, rows, columns]
  std::int32_t count;
  std::int32_t rows;
  std::int32_t columns;
  bool lower;
  const float* intra_parts;  ///< [matrices, intra_count, rows]
  std::int32_t intra_count;
  float* sums;          ///< [rows, columns] of the first matrix
  std::int64_t stride;  ///< numbers from one row of sums to the next
  std::int64_t item_stride = 0;
  std::int64_t head_stride = 0;
  Divisor heads{};
  std::int32_t matrices = 1;
  const std::uint32_t* pattern = nullptr;  ///< coefficients of PatternBits, or null

  MHLA_DEVICE bool has(std::int32_t row, std::int32_t column) const {
    if (pattern == nullptr) return true;
    const std::int64_t word = std::int64_t{row} * PatternBits{rows, columns}.row_words();
    return (PatternBits::load(pattern + word + column / 32) >> (column % 32) & 1) != 0;
  }
};

struct OrderedSumsSm80 {
  using Params = OrderedSumParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 8;
  static constexpr int kRegisters = 64;

  static constexpr unsigned grid(const Params& p, int) {
    return static_cast<unsigned>(p.matrices) * static_cast<unsigned>(p.rows) * blocks_of_row(p);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const std::uint32_t thread = ptx::tid_x(), sharer = thread % 32 / 4;
    const std::uint32_t line = ptx::ctaid_x() / blocks_of_row(p);
    const std::uint32_t block = ptx::ctaid_x() - line * blocks_of_row(p);
    const std::uint32_t matrix = line / static_cast<std::uint32_t>(p.rows);
    const auto row = static_cast<std::int32_t>(line) - static_cast<std::int32_t>(matrix) * p.rows;
    const auto column = static_cast<std::int32_t>(block * kNumbers + thread / 32 * 4 + thread % 4);
    const bool exists = column < p.columns;
    const bool has = exists && p.has(row, column);
    float sum = 0;
    if (has && !(p.lower && column >= row)) {
      const std::int64_t step = std::int64_t{p.rows} * p.columns;
      const std::int64_t index = std::int64_t{row} * p.columns + column;
      sum = of_parts(p.parts + matrix * (p.count * step) + index, step, p.count, sharer);
    }
    if (has && p.intra_count > 0 && column == row) {
      const std::int64_t of_matrix = std::int64_t{p.intra_count} * p.rows;
      sum += of_parts(p.intra_parts + matrix * of_matrix + row, p.rows, p.intra_count, sharer);
    }
    MHLA_CUDA_UNROLL
    for (std::uint32_t mask = 4; mask < 32; mask *= 2) sum += ptx::shfl_bfly(sum, mask);
    if (!exists || sharer != 0) return;
    const auto pair = static_cast<std::int32_t>(matrix);
    const std::int32_t batch = p.heads.quotient(pair), head = pair - batch * p.heads.value();
    float* const to = p.sums + batch * p.item_stride + head * p.head_stride;
    ptx::st_global_f32(to + row * p.stride + column, sum);
  }

 private:
  static constexpr std::uint32_t kNumbers = kThreads / 8;  // numbers per thread block

  /// Thread blocks per row: a matrix may have more than 2^32 numbers.
  static MHLA_HOST_DEVICE constexpr unsigned blocks_of_row(const Params& p) {
    return (static_cast<unsigned>(p.columns) - 1) / kNumbers + 1;
  }

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
