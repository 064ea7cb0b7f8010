#pragma once

/// \file
/// Rows of 16-bit numbers in shared memory, laid out so that eight rows' pieces of 16 bytes lie in
/// different banks: what ldmatrix reads in one go.
///
///     columns a multiple of 64   panels of 64 columns, rows of 128 bytes in a panel; piece j of
///     row r
///                                is in place j ^ (r % 8): the layout of tensor copies and wgmma
///     72 columns                 rows of 144 bytes as they are: each begins four banks further on

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// [kRows, kColumns] numbers at a shared address, in panels a multiple of 1024.
template <int kRows_, int kColumns_>
struct SharedTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPieces = kColumns / 8;  ///< of 16 bytes in a row
  static constexpr bool kPanels = kColumns % 64 == 0;
  static constexpr int kPanelBytes = kRows * 128;
  static constexpr int kBytes = kRows * kColumns * 2;
  static_assert(kPanels || kColumns == 72, "tiles have multiples of 64 columns, or 72");
  static_assert(kRows % 8 == 0, "tiles have multiples of 8 rows: the swizzle repeats after 8");

  std::uint32_t begin;

  /// Bytes from the tile's begin to a piece of a row.
  static MHLA_HOST_DEVICE constexpr std::uint32_t offset(std::uint32_t row, std::uint32_t piece) {
    if constexpr (kPanels) {
      return piece / 8 * kPanelBytes + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
    } else {
      return row * (kColumns * 2) + piece * 16;
    }
  }

  /// The shared address of a piece of a row.
  MHLA_HOST_DEVICE constexpr std::uint32_t piece(std::uint32_t row, std::uint32_t piece) const {
    return begin + offset(row, piece);
  }
};

}  // namespace mhla::cuda
