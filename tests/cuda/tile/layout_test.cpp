#include "mhla/cuda/tile/layout.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "mhla/cuda/tile/fragment.cuh"

namespace mhla::cuda {
namespace {

namespace shared_tile_tests {

// Shared memory has 32 banks of 4 bytes. An access of 16 bytes by each of a warp's threads goes in
// four phases of 8 threads, one of 4 bytes in one phase of 32; a phase takes one turn if no two
// threads need the same bank.

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

/// Where the copy engine puts a piece: rows of 128 bytes of a panel one behind another, then bits
/// 4 to 6 of the address are replaced by their exclusive or with bits 7 to 9.
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
                   SharedTile<8, 72>, SharedTile<16, 72>, SharedTile<64, 72>, SharedTile<128, 72>,
                   SharedTile<16, 128>, SharedTile<64, 128>, SharedTile<256, 128>,
                   SharedTile<16, 256>, SharedTile<64, 256>, SharedTile<128, 256>>;
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
  } else {  // without a swizzle, as the rows of the box
    EXPECT_EQ(TypeParam::offset(3, 2), 3u * 144 + 2 * 16);
  }
}

// The checks see what they are for: rows of 128 bytes as they are, without a swizzle.
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

}  // namespace summary_regions_tests

namespace descriptor_tests {

/// The fields of a descriptor as the PTX manual names them.
struct Fields {
  explicit constexpr Fields(std::uint64_t bits)
      : begin(static_cast<std::uint32_t>(bits & 0x3FFF) * 16),
        leading(static_cast<std::uint32_t>(bits >> 16 & 0x3FFF) * 16),
        stride(static_cast<std::uint32_t>(bits >> 32 & 0x3FFF) * 16),
        offset(static_cast<std::uint32_t>(bits >> 49 & 7)),
        swizzle(static_cast<std::uint32_t>(bits >> 62)),
        others(bits & ~0xC00E3FFF3FFF3FFFu) {}
  std::uint32_t begin, leading, stride, offset, swizzle;
  std::uint64_t others;

  constexpr bool plain() const { return offset == 0 && swizzle == 1 && others == 0; }
};

constexpr std::uint32_t swizzled(std::uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

/// Where wgmma finds B[k, n] (canonical layouts of the manual, 16-bit numbers, 128-byte swizzle).
constexpr std::uint32_t stored_n_k(Fields f, std::uint32_t k, std::uint32_t n) {
  return swizzled(f.begin + n / 8 * f.stride + n % 8 * 128 + k * 2);
}
constexpr std::uint32_t stored_k_n(Fields f, std::uint32_t k, std::uint32_t n) {
  return swizzled(f.begin + n / 64 * f.leading + k / 8 * f.stride + k % 8 * 128 + n % 64 * 2);
}

/// Where a tensor copy puts a number of a tile.
template <class Tile>
std::uint32_t place(Tile tile, std::uint32_t row, std::uint32_t column) {
  return tile.piece(row, column / 8) + column % 8 * 2;
}

TEST(Descriptor, RowsOfATileAreColumnsOfB) {
  for (const std::uint32_t begin : {0u, 1024u, 0x1F000u, 0x38000u}) {
    const SharedTile<256, 64> tile{begin};
    for (const std::uint32_t row : {0u, 8u, 64u, 192u}) {
      for (std::uint32_t step = 0; step < 4; ++step) {
        const Fields f(transposed_factor(begin, row, step));
        ASSERT_TRUE(f.plain());
        for (std::uint32_t k = 0; k < 16; ++k) {
          for (std::uint32_t n = 0; n < 64; ++n) {
            ASSERT_EQ(stored_n_k(f, k, n), place(tile, row + n, 16 * step + k))
                << begin << " " << row << " " << step << " " << k << " " << n;
          }
        }
      }
    }
  }
}

TEST(Descriptor, RowsOfATileAreRowsOfB) {
  using Tile = SharedTile<128, 256>;
  for (const std::uint32_t begin : {0u, 1024u, 0x1F000u, 0x28000u}) {
    const Tile tile{begin};
    for (const std::uint32_t row : {0u, 16u, 56u, 112u}) {
      for (const std::uint32_t panel : {0u, 1u, 2u}) {
        const Fields f(factor(begin + panel * Tile::kPanelBytes, row, Tile::kPanelBytes));
        ASSERT_TRUE(f.plain());
        for (std::uint32_t k = 0; k < 16; ++k) {
          for (std::uint32_t n = 0; n < 128; ++n) {
            ASSERT_EQ(stored_k_n(f, k, n), place(tile, row + k, 64 * panel + n))
                << begin << " " << row << " " << panel << " " << k << " " << n;
          }
        }
      }
    }
  }
}

static_assert(factor(0, 0, 0) == 0x4000004000000000u);
static_assert(factor(0x400, 16, 0x7000) == 0x40000040070000C0u);
static_assert(transposed_factor(0x400, 0, 3) == 0x4000004000000046u);

}  // namespace descriptor_tests

}  // namespace
}  // namespace mhla::cuda
