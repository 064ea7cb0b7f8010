#pragma once

/// \file
/// Summaries S_b [D, E] of several blocks in shared memory, a region each, laid out for reads and
/// writes of both kinds without bank conflicts:
///
///     rows       eight rows of one region, the same piece of 16 bytes: S_b as an operand
///     regions    the same piece of the same row in eight regions: the blocks b as an operand
///
///     columns a multiple of 64   panels as SharedTile, piece j of row r of region b in place
///                                j ^ (r % 8) ^ (b % 8)
///     72 columns                 rows of 144 bytes as they are, and 16 bytes behind each region:
///                                regions begin four banks further on, as rows do

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// [kRegions, kRows, kColumns] numbers at a shared address, a multiple of 128.
template <int kRegions, int kRows_, int kColumns_>
struct SummaryRegions {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPieces = kColumns / 8;  ///< of 16 bytes in a row
  static constexpr bool kPanels = kColumns % 64 == 0;
  static constexpr int kPanelBytes = kRows * 128;
  static constexpr int kRegionBytes = kRows * kColumns * 2 + (kPanels ? 0 : 16);
  static constexpr int kBytes = kRegions * kRegionBytes;
  static_assert(kPanels || kColumns == 72, "regions have multiples of 64 columns, or 72");
  static_assert(kRows % 8 == 0, "rows come in multiples of 8: the swizzle repeats after 8");

  std::uint32_t begin;

  /// Bytes from the begin to a piece of a row of a region.
  static MHLA_HOST_DEVICE constexpr std::uint32_t offset(std::uint32_t region, std::uint32_t row,
                                                         std::uint32_t piece) {
    if constexpr (kPanels) {
      return region * kRegionBytes + piece / 8 * kPanelBytes + row * 128 +
             ((piece % 8) ^ (row % 8) ^ (region % 8)) * 16;
    } else {
      return region * kRegionBytes + row * (kColumns * 2) + piece * 16;
    }
  }

  /// The shared address of a piece of a row of a region.
  MHLA_HOST_DEVICE constexpr std::uint32_t piece(std::uint32_t region, std::uint32_t row,
                                                 std::uint32_t piece) const {
    return begin + offset(region, row, piece);
  }

  /// One region, as products take tiles.
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

}  // namespace mhla::cuda
