#include "mhla/cuda/tile/summary_regions.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace mhla::cuda {
namespace {

// Banks and phases: shared_tile_test.cpp.
constexpr bool all_different(const std::array<std::uint32_t, 8>& pieces) {
  std::uint32_t banks = 0;
  for (const std::uint32_t address : pieces) banks |= 1u << (address / 16 % 8);
  return banks == 0xff;
}

constexpr int kRegions = 16;

template <class Regions>
constexpr bool is_injective() {
  std::array<bool, Regions::kBytes / 16> taken{};
  for (std::uint32_t region = 0; region < kRegions; ++region) {
    for (std::uint32_t row = 0; row < Regions::kRows; ++row) {
      for (std::uint32_t piece = 0; piece < Regions::kPieces; ++piece) {
        const std::uint32_t offset = Regions::offset(region, row, piece);
        if (offset % 16 != 0 || offset >= Regions::kBytes || taken[offset / 16]) return false;
        if (offset / Regions::kRegionBytes != region) return false;
        taken[offset / 16] = true;
      }
    }
  }
  return true;
}

/// Eight rows of a region, and the same row of eight regions, the same piece of each.
template <class Regions>
constexpr bool is_free_of_conflicts() {
  for (std::uint32_t region = 0; region < kRegions; region += 8) {
    for (std::uint32_t row = 0; row < Regions::kRows; row += 8) {
      for (std::uint32_t piece = 0; piece < Regions::kPieces; ++piece) {
        for (std::uint32_t fixed = 0; fixed < 8; ++fixed) {
          std::array<std::uint32_t, 8> rows{}, regions{};
          for (std::uint32_t i = 0; i < 8; ++i) {
            rows[i] = Regions{128}.piece(region + fixed, row + i, piece);
            regions[i] = Regions{128}.piece(region + i, row + fixed, piece);
          }
          if (!all_different(rows) || !all_different(regions)) return false;
        }
      }
    }
  }
  return true;
}

/// Pieces of a region one after another, as rows are stored from registers or written out.
template <class Regions>
constexpr bool moves_rows_without_conflicts() {
  for (std::uint32_t first = 0; first < Regions::kRows * Regions::kPieces; first += 8) {
    std::array<std::uint32_t, 8> pieces{};
    for (std::uint32_t i = 0; i < 8; ++i) {
      pieces[i] =
          Regions{0}.piece(3, (first + i) / Regions::kPieces, (first + i) % Regions::kPieces);
    }
    if (!all_different(pieces)) return false;
  }
  return true;
}

template <class Regions>
constexpr bool regions_are_tiles() {
  for (std::uint32_t region = 0; region < kRegions; ++region) {
    const auto tile = Regions{256}.region(region);
    for (std::uint32_t row = 0; row < Regions::kRows; ++row) {
      for (std::uint32_t piece = 0; piece < Regions::kPieces; ++piece) {
        if (tile.piece(row, piece) != 256 + Regions::offset(region, row, piece)) return false;
      }
    }
  }
  return true;
}

template <class Regions>
class AllRegions : public testing::Test {
  static_assert(is_injective<Regions>());
  static_assert(is_free_of_conflicts<Regions>());
  static_assert(moves_rows_without_conflicts<Regions>());
};
using Types = testing::Types<SummaryRegions<kRegions, 64, 64>, SummaryRegions<kRegions, 72, 72>,
                             SummaryRegions<kRegions, 16, 128>, SummaryRegions<kRegions, 8, 256>>;
TYPED_TEST_SUITE(AllRegions, Types);

TYPED_TEST(AllRegions, PiecesHaveTheirOwnPlaces) { EXPECT_TRUE(is_injective<TypeParam>()); }

TYPED_TEST(AllRegions, RowsAndRegionsAreReadWithoutConflicts) {
  EXPECT_TRUE(is_free_of_conflicts<TypeParam>());
  EXPECT_TRUE(moves_rows_without_conflicts<TypeParam>());
}

TYPED_TEST(AllRegions, EachIsATile) { EXPECT_TRUE(regions_are_tiles<TypeParam>()); }

}  // namespace
}  // namespace mhla::cuda
