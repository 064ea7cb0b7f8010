#pragma once

/// \file
/// Layout of the pattern of a mixing matrix in device memory: a bit per coefficient, and a bit per
/// strip of 64 rows and 32 columns that has some. Kernels skip the other strips.
///
/// Words of 32 bits, the lowest first:
///
///     strips of m     [ceil(Mq / 64), ceil(Mk / 1024)]
///     strips of m^T   [ceil(Mk / 64), ceil(Mq / 1024)]
///     coefficients    [Mq, ceil(Mk / 32)]

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/global.cuh"

namespace mhla::cuda {

struct PatternBits {
  static constexpr std::int32_t kRows = 64, kColumns = 32;  ///< of a strip

  std::int32_t rows;     ///< Mq
  std::int32_t columns;  ///< Mk

  /// Words per tile of 64 rows of a matrix with `columns` columns.
  static MHLA_HOST_DEVICE constexpr std::int32_t words(std::int32_t columns) {
    return (columns - 1) / (32 * kColumns) + 1;
  }
  /// Words per row of coefficients.
  MHLA_HOST_DEVICE constexpr std::int32_t row_words() const { return (columns - 1) / 32 + 1; }
  constexpr std::int64_t transposed() const { return strips(rows, columns); }
  constexpr std::int64_t coefficients() const { return transposed() + strips(columns, rows); }
  /// Words in all.
  constexpr std::int64_t size() const { return coefficients() + std::int64_t{rows} * row_words(); }

  /// Returns the first strip with coefficients from `strip` on, or any that is not below `end`.
  /// \param tile  words of the 64 rows
  static MHLA_DEVICE std::int32_t next(const std::uint32_t* tile, std::int32_t strip,
                                       std::int32_t end) {
    MHLA_CUDA_LOOP
    while (strip < end) {
      std::uint32_t word = load(tile + strip / 32) >> (strip % 32);
      if (word == 0) {
        strip = (strip / 32 + 1) * 32;
        continue;
      }
      MHLA_CUDA_LOOP
      while ((word & 1) == 0) word >>= 1, ++strip;
      break;
    }
    return strip;
  }
  static MHLA_DEVICE std::uint32_t load(const std::uint32_t* from) {
    return static_cast<std::uint32_t>(
        ptx::ld_global_nc_s32(static_cast<const std::int32_t*>(static_cast<const void*>(from))));
  }

 private:
  static constexpr std::int64_t strips(std::int32_t rows, std::int32_t columns) {
    return std::int64_t{(rows - 1) / kRows + 1} * words(columns);
  }
};

}  // namespace mhla::cuda
