#pragma once

/// \file
/// A mixing matrix that a thread block reads number by number. A matrix of at most 64 x 64 numbers,
/// or as many in other proportions, is copied to shared memory. Larger matrices are read from
/// device memory, at an address that shared memory keeps, since products need the registers.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda {

struct MixingCopy {
  static constexpr int kBytes = 4 * 64 * 65;

  std::uint32_t begin;   ///< shared address of kBytes bytes
  std::int32_t rows;     ///< Mq
  std::int32_t columns;  ///< Mk

  /// Returns true if the copy fits.
  MHLA_DEVICE bool fits() const { return 4 * std::int64_t{rows} * pitch() <= kBytes; }

  /// Copies the matrix, one warp per row, or stores its address. A barrier must follow before they
  /// are read.
  MHLA_DEVICE void store(const MixingArray& mixing, std::int32_t warp, std::int32_t warps,
                         std::uint32_t lane) const {
    if (!fits()) {
      const auto address = reinterpret_cast<std::uintptr_t>(mixing.data);
      if (warp > 0 || lane > 0) return;
      ptx::st_shared(begin, static_cast<std::uint32_t>(address));
      ptx::st_shared(begin + 4, static_cast<std::uint32_t>(address >> 32));
      return;
    }
    MHLA_CUDA_LOOP
    for (std::int32_t i = warp; i < rows; i += warps) {
      MHLA_CUDA_LOOP
      for (auto b = static_cast<std::int32_t>(lane); b < columns; b += 32) {
        ptx::st_shared_f32(at(i, b), ptx::ld_global_nc_f32(mixing.row(i) + b));
      }
    }
  }

  /// Multiplies scores of two queries and four keys by their coefficients. Absent keys, of block
  /// -1, get any coefficient.
  /// \param stride   elements from one row of the matrix to the next
  /// \param is_here  fits()
  MHLA_DEVICE void multiply(std::int64_t stride, bool is_here,
                            const std::int32_t (&query_blocks)[2],
                            const std::int32_t (&key_blocks)[4], float (&scores)[2][4]) const {
    float m[2][4];
    const auto load = [&](const auto& coefficient) {
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 8; ++i) {
        const std::int32_t b = key_blocks[i / 4 * 2 + i % 2];
        m[i / 4][i % 4] = coefficient(query_blocks[i / 2 % 2], b < 0 ? 0 : b);
      }
    };
    if (is_here) {
      load([&](std::int32_t i, std::int32_t b) { return ptx::ld_shared_f32(at(i, b)); });
    } else {
      const ptx::Words2 address = ptx::ld_shared_v2(begin);
      const auto* const matrix = reinterpret_cast<const float*>(std::uint64_t{address.x[1]} << 32 |
                                                                std::uint64_t{address.x[0]});
      load([&](std::int32_t i, std::int32_t b) {
        return ptx::ld_global_nc_f32(matrix + i * stride + b);
      });
    }
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 8; ++i) scores[i / 4][i % 4] *= m[i / 4][i % 4];
  }

 private:
  /// Floats from one row to the next. The number is odd, so that rows begin in different banks.
  MHLA_DEVICE std::int32_t pitch() const { return columns | 1; }
  MHLA_DEVICE std::uint32_t at(std::int32_t i, std::int32_t b) const {
    return begin + 4 * static_cast<std::uint32_t>(i * pitch() + b);
  }
};

}  // namespace mhla::cuda
