#pragma once

/// \file
/// Layouts of 16-bit numbers in shared memory: tiles, regions of summaries, factors of wgmma.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

// -------------------------------------------------------------------------------------------------
// Rows of 16-bit numbers in shared memory. The 16-byte pieces of eight rows that one ldmatrix reads
// are in different banks.
//
//     columns a multiple of 64   panels of 64 columns, rows of 128 bytes in a panel; piece j of row
//                                r is in place j ^ (r % 8): the layout of tensor copies and wgmma
//     others                     one panel; the swizzle is that of Width, so that pieces j of eight
//                                rows, and eight pieces in the order of rows, are in different
//                                banks

/// Place of a piece of a row that is not in panels.
template <int kColumns>
MHLA_HOST_DEVICE constexpr std::uint32_t swizzled(std::uint32_t row, std::uint32_t piece) {
  constexpr std::uint32_t kPieces = Width<kColumns>::kSwizzle;
  return piece / kPieces * kPieces + ((piece % kPieces) ^ (row / (8 / kPieces) % kPieces));
}

/// [kRows, kColumns] numbers at a shared address; panels begin at multiples of 1024.
template <int kRows_, int kColumns_>
struct SharedTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPieces = Width<kColumns>::kPieces;  ///< pieces of 16 bytes per row
  static constexpr bool kPanels = Width<kColumns>::kPanels;
  static constexpr int kRowBytes = Width<kColumns>::kRowBytes;  ///< of a panel
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kRows * kColumns * 2;
  static_assert(kRows % 8 == 0, "tiles have multiples of 8 rows: the swizzle repeats after 8");

  std::uint32_t begin;

  /// Offset in bytes of a piece of a row.
  static MHLA_HOST_DEVICE constexpr std::uint32_t offset(std::uint32_t row, std::uint32_t piece) {
    if constexpr (kPanels) {
      return piece / 8 * kPanelBytes + row * kRowBytes + ((piece % 8) ^ (row % 8)) * 16;
    } else {
      return row * kRowBytes + swizzled<kColumns>(row, piece) * 16;
    }
  }

  /// Shared address of a piece of a row.
  MHLA_HOST_DEVICE constexpr std::uint32_t piece(std::uint32_t row, std::uint32_t piece) const {
    return begin + offset(row, piece);
  }
};

// -------------------------------------------------------------------------------------------------
// Summaries S_b [D, E] of several blocks in shared memory, one region each. Two kinds of reads and
// writes have no bank conflicts:
//
//     rows       eight rows of one region, the same piece of 16 bytes: S_b as an operand
//     regions    the same piece of the same row in eight regions: the blocks b as an operand
//
//     columns a multiple of 64   panels as SharedTile, piece j of row r of region b in place
//                                j ^ (r % 8) ^ (b % 8)
//     others                     rows as SharedTile, and 16 bytes after each region: eight regions
//                                begin in different banks, as rows do

/// [kRegions, kRows, kColumns] numbers at a shared address, a multiple of 128.
template <int kRegions, int kRows_, int kColumns_>
struct SummaryRegions {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPieces = Width<kColumns>::kPieces;  ///< pieces of 16 bytes per row
  static constexpr bool kPanels = Width<kColumns>::kPanels;
  static constexpr int kRowBytes = Width<kColumns>::kRowBytes;  ///< of a panel
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kRegionBytes = kRows * kColumns * 2 + (kPanels ? 0 : 16);
  static constexpr int kBytes = kRegions * kRegionBytes;
  static_assert(kRows % 8 == 0, "rows come in multiples of 8: the swizzle repeats after 8");

  std::uint32_t begin;

  /// Offset in bytes of a piece of a row of a region.
  static MHLA_HOST_DEVICE constexpr std::uint32_t offset(std::uint32_t region, std::uint32_t row,
                                                         std::uint32_t piece) {
    if constexpr (kPanels) {
      return region * kRegionBytes + piece / 8 * kPanelBytes + row * kRowBytes +
             ((piece % 8) ^ (row % 8) ^ (region % 8)) * 16;
    } else {
      return region * kRegionBytes + row * kRowBytes + swizzled<kColumns>(row, piece) * 16;
    }
  }

  /// Shared address of a piece of a row of a region.
  MHLA_HOST_DEVICE constexpr std::uint32_t piece(std::uint32_t region, std::uint32_t row,
                                                 std::uint32_t piece) const {
    return begin + offset(region, row, piece);
  }

  /// One region, with the interface of a tile.
  struct Region {
    static constexpr int kRows = SummaryRegions::kRows;
    static constexpr int kColumns = SummaryRegions::kColumns;
    static constexpr int kPieces = SummaryRegions::kPieces;

    SummaryRegions all;
    std::uint32_t index;

    MHLA_HOST_DEVICE constexpr std::uint32_t piece(std::uint32_t row, std::uint32_t piece) const {
      return all.piece(index, row, piece);
    }
  };
  MHLA_HOST_DEVICE constexpr Region region(std::uint32_t index) const { return {*this, index}; }
};

// -------------------------------------------------------------------------------------------------
// Descriptors of factors in shared memory for products of a warpgroup (ptx/wgmma.cuh). Numbers have
// 16 bits and are in panels of 64 columns as SharedTile has them: rows of 128 bytes, each panel at
// a multiple of 1024.
//
//     bits     0-13   address of the factor / 16
//             16-29   bytes from a panel to the next, / 16: B as [16][n] with n > 64
//             32-45   bytes from eight rows to the next eight, / 16: 1024
//             49-51   0: panels begin where the swizzle repeats
//             62-63   1: swizzle of 128 bytes
//
// Source: PTX ISA, "Matrix Descriptor Format" and "Strides"; CUTLASS, mma_traits_sm90_gmma.hpp.

/// B[16,n] of wgmma_m64k16<0>, stored as [n][k]. n are the rows of a panel from `row` (a multiple
/// of 8) on; k runs over columns 16 step.. 16 step + 15.
MHLA_HOST_DEVICE constexpr std::uint64_t transposed_factor(std::uint32_t panel, std::uint32_t row,
                                                           std::uint32_t step);

/// B[16,n] of wgmma_m64k16<1>, stored as [k][n]: rows row.. row + 15 of a panel, `row` a multiple
/// of 8. Columns 64 to n - 1 are in the next panel, `panel_bytes` (a multiple of 1024) further on.
MHLA_HOST_DEVICE constexpr std::uint64_t factor(std::uint32_t panel, std::uint32_t row,
                                                std::uint32_t panel_bytes);

// -------------------------------------------------------------------------------------------------

namespace detail {

/// Descriptor of data `pieces` pieces of 16 bytes after `begin`. Addresses end below 2^18, so that
/// a step to the next is one 32-bit addition.
MHLA_HOST_DEVICE constexpr std::uint64_t descriptor(std::uint32_t begin, std::uint32_t pieces,
                                                    std::uint32_t leading) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kEightRows | (begin / 16 + (leading / 16 << 16) + pieces);
}

}  // namespace detail

MHLA_HOST_DEVICE constexpr std::uint64_t transposed_factor(std::uint32_t panel, std::uint32_t row,
                                                           std::uint32_t step) {
  return detail::descriptor(panel, 8 * row + 2 * step, 0);
}

MHLA_HOST_DEVICE constexpr std::uint64_t factor(std::uint32_t panel, std::uint32_t row,
                                                std::uint32_t panel_bytes) {
  return detail::descriptor(panel, 8 * row, panel_bytes);
}

}  // namespace mhla::cuda
