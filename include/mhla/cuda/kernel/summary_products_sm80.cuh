#pragma once

/// \file
/// Gradient of mixing coefficients by summaries:
///
///     dm_ib = sum over the matrix's pairs of <dS~_i, S_b>     both have K = D E numbers, rounded
///     to T
///
/// The K numbers of a pair are split into slabs of about 1024. A warp multiplies 16 rows i with 64
/// columns b, over a slice of each slab of a chunk. Four warps have 64 rows, or fewer rows and more
/// slices. Both factors are read from device memory (tile/row_pieces.cuh), each row once per 64
/// rows of the other factor. ordered_sums.cuh adds the parts in order. Shared memory: none.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/pattern_bits.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/mma.cuh"

namespace mhla::cuda {

struct SummaryProductParameters {
  const unsigned char* rows_data;         ///< dS~ [pairs, rows, K]
  const unsigned char* columns_data;      ///< S [pairs, columns, K]
  std::int32_t rows;                      ///< Mq
  std::int32_t columns;                   ///< Mk
  std::int32_t slabs;                     ///< slabs of the pairs of a matrix
  std::int32_t chunks;                    ///< chunks of these slabs
  bool lower;                             ///< only b < i is needed
  float factor;                           ///< multiplies the sums
  float* parts;                           ///< [chunks slices(), rows, columns] of the first matrix
  std::int32_t matrices = 1;              ///< matrix g has pairs g, g + matrices, ...
  std::int64_t matrix_parts = 0;          ///< numbers from a matrix's parts to the next
  const std::uint32_t* strips = nullptr;  ///< of the pattern (pattern_bits.cuh), or null

  /// Returns true if some coefficients of a row's tile are needed, in 64 columns.
  MHLA_DEVICE bool needs(std::int32_t row, std::int32_t column) const {
    if (lower && column > row + 15) return false;
    if (strips == nullptr) return true;
    static_assert(PatternBits::kRows == kTile && 2 * PatternBits::kColumns == kTile);
    const std::int32_t strip = column / PatternBits::kColumns;
    const std::int32_t word = row / kTile * PatternBits::words(columns) + strip / 32;
    return (PatternBits::load(strips + word) >> (strip % 32) & 3) != 0;
  }

  static constexpr std::int32_t kTile = 64;

  /// Number of warps that share K.
  MHLA_HOST_DEVICE constexpr std::int32_t slices() const {
    return rows <= 16 ? 4 : rows <= 32 ? 2 : 1;
  }
  MHLA_HOST_DEVICE constexpr std::int32_t tiles() const {
    return ((rows - 1) / kTile + 1) * column_tiles();
  }
  MHLA_HOST_DEVICE constexpr std::int32_t column_tiles() const { return (columns - 1) / kTile + 1; }
};

template <class T, int K>
struct SummaryProductsSm80 {
  static_assert(K % 32 == 0);
  using Params = SummaryProductParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 4;
  static constexpr int kRegisters = 128;

  static constexpr unsigned grid(const Params& p, int) {
    return static_cast<unsigned>(p.matrices * p.chunks) * static_cast<unsigned>(p.tiles());
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const auto index = static_cast<std::int32_t>(ptx::ctaid_x());
    const std::int32_t tile = index % p.tiles(), chunks = index / p.tiles();
    const std::int32_t matrix = chunks / p.chunks, chunk = chunks % p.chunks;
    const std::int32_t slices = p.slices(), row_warps = 4 / slices;
    const auto warp = static_cast<std::int32_t>(ptx::tid_x() / 32);
    const std::int32_t column = tile % p.column_tiles() * Params::kTile;
    const std::int32_t row = tile / p.column_tiles() * Params::kTile + warp % row_warps * 16,
                       slice = warp / row_warps;
    if (row >= p.rows || !p.needs(row, column)) return;
    const std::int32_t step = (kSteps - 1) / slices + 1;
    float sums[8][4] = {};
    MHLA_CUDA_LOOP
    for (std::int64_t slab = std::int64_t{chunk} * p.slabs / p.chunks;
         slab < std::int64_t{chunk + 1} * p.slabs / p.chunks; ++slab) {
      const auto first = static_cast<std::int32_t>(slab % kSlabs) * kSteps + slice * step;
      const auto last = static_cast<std::int32_t>(slab % kSlabs + 1) * kSteps;
      add_steps(p, matrix + slab / kSlabs * p.matrices, row, column, first,
                first + step < last ? first + step : last, sums);
    }
    write(p, matrix, chunk * slices + slice, row, column, sums);
  }

  /// Slabs per pair.
  static constexpr std::int32_t kSlabs = [] {
    std::int32_t slabs = K < 2048 ? 1 : K / 1024;
    while (K / 32 % slabs != 0) ++slabs;
    return slabs;
  }();

 private:
  static constexpr std::int32_t kSteps = K / 32 / kSlabs;  ///< steps per slab
  static_assert(kSteps * kSlabs * 32 == K);

  /// Adds steps begin.. end - 1 of a pair.
  static MHLA_DEVICE void add_steps(const Params& p, std::int64_t pair, std::int32_t row,
                                    std::int32_t column, std::int32_t begin, std::int32_t end,
                                    float (&sums)[8][4]) {
    const auto lane = static_cast<std::int32_t>(ptx::tid_x() % 32);
    const auto least = [](std::int32_t x, std::int32_t y) { return x < y ? x : y; };
    const auto at = [&](const unsigned char* data, std::int32_t count, std::int32_t r) {
      return data + (pair * count + least(r, count - 1)) * (2 * K) + 16 * (lane % 4);
    };
    const unsigned char* const a = at(p.rows_data, p.rows, row + lane / 4);
    const unsigned char* const a_8 = at(p.rows_data, p.rows, row + lane / 4 + 8);
    const unsigned char* b[8];
    MHLA_CUDA_UNROLL
    for (int n = 0; n < 8; ++n) b[n] = at(p.columns_data, p.columns, column + 8 * n + lane / 4);
    const std::int32_t count = least((p.columns - column - 1) / 8 + 1, 8);
    MHLA_CUDA_LOOP
    for (std::int32_t s = begin; s < end; ++s) {
      const ptx::Words4 x = ptx::ld_global_nc_kept_v4(a + 64 * s);
      const ptx::Words4 x_8 = ptx::ld_global_nc_kept_v4(a_8 + 64 * s);
      ptx::Words4 y[8];
      MHLA_CUDA_UNROLL
      for (int n = 0; n < 8; ++n) {  // all loads precede the first product
        if (n < count) y[n] = ptx::ld_global_nc_kept_v4(b[n] + 64 * s);
      }
      MHLA_CUDA_UNROLL
      for (int n = 0; n < 8; ++n) {
        if (n >= count) break;
        ptx::mma_m16n8k16<T>(sums[n], x.x[0], x_8.x[0], x.x[1], x_8.x[1], y[n].x[0], y[n].x[1]);
        ptx::mma_m16n8k16<T>(sums[n], x.x[2], x_8.x[2], x.x[3], x_8.x[3], y[n].x[2], y[n].x[3]);
      }
    }
  }

  static MHLA_DEVICE void write(const Params& p, std::int32_t matrix, std::int32_t part,
                                std::int32_t row, std::int32_t column, const float (&sums)[8][4]) {
    const auto lane = static_cast<std::int32_t>(ptx::tid_x() % 32);
    float* const to = p.parts + matrix * p.matrix_parts + std::int64_t{part} * p.rows * p.columns;
    MHLA_CUDA_UNROLL
    for (int n = 0; n < 8; ++n) {
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::int32_t r = row + lane / 4 + i / 2 * 8,
                           c = column + 8 * n + lane % 4 * 2 + i % 2;
        if (r < p.rows && c < p.columns) {
          ptx::st_global_f32(to + std::int64_t{r} * p.columns + c, p.factor * sums[n][i]);
        }
      }
    }
  }
};

}  // namespace mhla::cuda
