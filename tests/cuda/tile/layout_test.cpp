#include "mhla/cuda/tile/layout.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "mhla/cuda/tile/fragment.cuh"

namespace mhla::cuda {
namespace {

namespace shared_tile_tests {

// Shared memory has 32 banks of 4 bytes. If each thread of a warp accesses 16 bytes, the access has
// four phases of 8 threads. If each accesses 4 bytes, it has one phase of 32 threads. A phase has
// no conflict if no two threads need the same bank.

constexpr bool all_different(const std::array<std::uint32_t, 8>& pieces) {
  std::uint32_t banks = 0;  // one bit for each group of four
  for (const std::uint32_t address : pieces) banks |= 1u << (address / 16 % 8);
  return banks == 0xff;
}

/// Every piece of a tile begins at its own multiple of 16 below kBytes.
template <class Tile>
constexpr bool is_bijective() {
  std::array<bool, Tile::kBytes / 16> taken{};
  for (std::uint32_t row = 0; row < Tile::kRows; ++row) {
    for (std::uint32_t piece = 0; piece < Tile::kPieces; ++piece) {
      const std::uint32_t offset = Tile::offset(row, piece);
      if (offset % 16 != 0 || offset >= Tile::kBytes || taken[offset / 16]) return false;
      taken[offset / 16] = true;
    }
  }
  return Tile::kRows * Tile::kPieces * 16 == Tile::kBytes;
}

/// True if pieces lie where the copy engine puts them: rows of 128 bytes of a panel follow each
/// other. Then bits 4 to 6 of the address are replaced by their exclusive or with bits 7 to 9.
template <class Tile>
constexpr bool is_swizzle_of_128_bytes(std::uint32_t begin) {
  for (std::uint32_t row = 0; row < Tile::kRows; ++row) {
    for (std::uint32_t piece = 0; piece < Tile::kPieces; ++piece) {
      const std::uint32_t linear =
          begin + piece / 8 * Tile::kRows * 128 + row * 128 + piece % 8 * 16;
      if (Tile{begin}.piece(row, piece) != (linear ^ ((linear >> 7 & 7) << 4))) return false;
    }
  }
  return true;
}

/// ldmatrix: phase i reads the rows whose addresses threads 8 i to 8 i + 7 give.
template <class Tile, class Place>
constexpr bool loads_without_conflicts(Place place) {
  for (std::uint32_t row = 0; row + 16 <= Tile::kRows; row += 8) {
    for (std::uint32_t piece = 0; piece + 1 < Tile::kPieces; ++piece) {
      for (std::uint32_t phase = 0; phase < 4; ++phase) {
        std::array<std::uint32_t, 8> pieces{};
        for (std::uint32_t i = 0; i < 8; ++i) {
          const TileCoord at = place(8 * phase + i);
          pieces[i] = Tile{1024}.piece(row + at.row, piece + at.piece);
        }
        if (!all_different(pieces)) return false;
      }
    }
  }
  return true;
}

/// store_sums: a thread stores 4 bytes at row lane / 4 and column 2 (lane % 4).
template <class Tile>
constexpr bool stores_sums_without_conflicts() {
  for (std::uint32_t row = 0; row < Tile::kRows; row += 8) {
    for (std::uint32_t piece = 0; piece < Tile::kPieces; ++piece) {
      std::uint32_t banks = 0;
      for (std::uint32_t lane = 0; lane < 32; ++lane) {
        const std::uint32_t address = Tile{1024}.piece(row + lane / 4, piece) + lane % 4 * 4;
        banks |= std::uint32_t{1} << (address / 4 % 32);
      }
      if (banks != 0xffffffff) return false;
    }
  }
  return true;
}

/// copy_rows and write_rows: threads take pieces in the order of rows.
template <class Tile>
constexpr bool moves_rows_without_conflicts() {
  for (std::uint32_t first = 0; first < Tile::kRows * Tile::kPieces; first += 8) {
    std::array<std::uint32_t, 8> pieces{};
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t index = first + i;
      pieces[i] = Tile{1024}.piece(index / Tile::kPieces, index % Tile::kPieces);
    }
    if (!all_different(pieces)) return false;
  }
  return true;
}

template <class Tile>
constexpr bool is_free_of_conflicts() {
  return loads_without_conflicts<Tile>(rows_coord) &&
         loads_without_conflicts<Tile>(transposed_rows_coord) &&
         loads_without_conflicts<Tile>(columns_coord) &&
         loads_without_conflicts<Tile>(transposed_columns_coord) &&
         stores_sums_without_conflicts<Tile>() && moves_rows_without_conflicts<Tile>();
}

template <class Tile>
class SharedTiles : public testing::Test {
  static_assert(is_bijective<Tile>());
  static_assert(is_free_of_conflicts<Tile>());
  static_assert(!Tile::kPanels || is_swizzle_of_128_bytes<Tile>(0));
};

using Tiles =
    testing::Types<SharedTile<8, 64>, SharedTile<16, 64>, SharedTile<64, 64>, SharedTile<128, 64>,
                   SharedTile<16, 32>, SharedTile<32, 32>, SharedTile<16, 48>, SharedTile<128, 48>,
                   SharedTile<16, 96>, SharedTile<128, 96>, SharedTile<8, 72>, SharedTile<16, 72>,
                   SharedTile<64, 72>, SharedTile<128, 72>, SharedTile<16, 128>,
                   SharedTile<64, 128>, SharedTile<256, 128>, SharedTile<16, 256>,
                   SharedTile<64, 256>, SharedTile<128, 256>>;
TYPED_TEST_SUITE(SharedTiles, Tiles);

TYPED_TEST(SharedTiles, PiecesFillTheTileOnce) { EXPECT_TRUE(is_bijective<TypeParam>()); }

TYPED_TEST(SharedTiles, LoadsAndStoresTakeOneTurn) {
  EXPECT_TRUE(is_free_of_conflicts<TypeParam>());
}

TYPED_TEST(SharedTiles, PanelsLieAsTheCopyEngineLaysThem) {
  if constexpr (TypeParam::kPanels) {
    for (const std::uint32_t begin : {0u, 1024u, 7 * 1024u, 226 * 1024u}) {
      EXPECT_TRUE(is_swizzle_of_128_bytes<TypeParam>(begin)) << begin;
    }
  } else {
    EXPECT_EQ((SharedTile<8, 72>::offset(3, 2)), 3u * 144 + 2 * 16);
    EXPECT_EQ((SharedTile<8, 32>::offset(3, 2)), 3u * 64 + 3 * 16);
    EXPECT_EQ((SharedTile<8, 48>::offset(4, 2)), 4u * 96 + 3 * 16);
  }
}

// The checks detect conflicts: rows of 128 bytes without a swizzle fail.
struct PlainTile {
  static constexpr int kRows = 16;
  static constexpr int kPieces = 8;
  static constexpr int kBytes = 16 * 128;
  std::uint32_t begin;
  static constexpr std::uint32_t offset(std::uint32_t row, std::uint32_t piece) {
    return row * 128 + piece * 16;
  }
  constexpr std::uint32_t piece(std::uint32_t row, std::uint32_t piece) const {
    return begin + offset(row, piece);
  }
};
static_assert(is_bijective<PlainTile>() && moves_rows_without_conflicts<PlainTile>());
static_assert(!loads_without_conflicts<PlainTile>(rows_coord));
static_assert(!stores_sums_without_conflicts<PlainTile>());
static_assert(!is_swizzle_of_128_bytes<PlainTile>(0));

}  // namespace shared_tile_tests

namespace summary_regions_tests {

using shared_tile_tests::all_different;

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
                             SummaryRegions<kRegions, 32, 32>, SummaryRegions<kRegions, 48, 48>,
                             SummaryRegions<kRegions, 96, 96>, SummaryRegions<kRegions, 16, 128>,
                             SummaryRegions<kRegions, 8, 256>>;
TYPED_TEST_SUITE(AllRegions, Types);

TYPED_TEST(AllRegions, PiecesHaveTheirOwnPlaces) { EXPECT_TRUE(is_injective<TypeParam>()); }

TYPED_TEST(AllRegions, RowsAndRegionsAreReadWithoutConflicts) {
  EXPECT_TRUE(is_free_of_conflicts<TypeParam>());
  EXPECT_TRUE(moves_rows_without_conflicts<TypeParam>());
}

TYPED_TEST(AllRegions, EachIsATile) { EXPECT_TRUE(regions_are_tiles<TypeParam>()); }

}  // namespace summary_regions_tests

}  // namespace
}  // namespace mhla::cuda
