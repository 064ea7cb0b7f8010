// Descriptors of the factors of wgmma, against the layouts of the PTX manual.

#include <gtest/gtest.h>

#include <cstdint>

#include "mhla/cuda/tile/layout.cuh"

namespace mhla::cuda {
namespace {

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

/// Returns the offset at which wgmma reads B[k, n] (canonical layouts of the manual, 16-bit
/// numbers, 128-byte swizzle).
constexpr std::uint32_t stored_n_k(Fields f, std::uint32_t k, std::uint32_t n) {
  return swizzled(f.begin + n / 8 * f.stride + n % 8 * 128 + k * 2);
}
constexpr std::uint32_t stored_k_n(Fields f, std::uint32_t k, std::uint32_t n) {
  return swizzled(f.begin + n / 64 * f.leading + k / 8 * f.stride + k % 8 * 128 + n % 64 * 2);
}

/// Returns the offset at which a tensor copy writes a number of a tile.
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
