#pragma once

/// \file
/// Descriptors of factors in shared memory for the products of a group of four warps
/// (ptx/wgmma.cuh): 16-bit numbers in panels of 64 columns as SharedTile lays them out, rows of 128
/// bytes, each panel at a multiple of 1024.
///
///     bits     0-13   where the factor begins, / 16
///             16-29   bytes from a panel to the next, / 16: B as [16][n] with n > 64
///             32-45   bytes from eight rows to the next eight, / 16: 1024
///             49-51   0: panels begin where the swizzle repeats
///             62-63   1: swizzle of 128 bytes
///
/// Source: PTX ISA, "Matrix Descriptor Format" and "Strides"; CUTLASS, mma_traits_sm90_gmma.hpp.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// B[16,n] of group_multiply_add<0>, n rows of a panel from `row` on, a multiple of 8, stored
/// [n][k]; k runs over columns 16 step.. of the panel.
MHLA_HOST_DEVICE constexpr std::uint64_t transposed_factor(std::uint32_t panel, std::uint32_t row,
                                                           std::uint32_t step);

/// B[16,n] of group_multiply_add<1>, rows row.. row + 15 of a panel, a multiple of 8, stored
/// [k][n]; columns 64 to n - 1 lie `panel_bytes`, a multiple of 1024, behind.
MHLA_HOST_DEVICE constexpr std::uint64_t factor(std::uint32_t panel, std::uint32_t row,
                                                std::uint32_t panel_bytes);

// -------------------------------------------------------------------------------------------------

namespace detail {

MHLA_HOST_DEVICE constexpr std::uint64_t descriptor(std::uint32_t begin, std::uint32_t leading) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kEightRows | std::uint64_t{(leading / 16) & 0x3fff} << 16 |
         ((begin / 16) & 0x3fff);
}

}  // namespace detail

MHLA_HOST_DEVICE constexpr std::uint64_t transposed_factor(std::uint32_t panel, std::uint32_t row,
                                                           std::uint32_t step) {
  return detail::descriptor(panel + row * 128 + step * 32, 0);
}

MHLA_HOST_DEVICE constexpr std::uint64_t factor(std::uint32_t panel, std::uint32_t row,
                                                std::uint32_t panel_bytes) {
  return detail::descriptor(panel + row * 128, panel_bytes);
}

}  // namespace mhla::cuda
