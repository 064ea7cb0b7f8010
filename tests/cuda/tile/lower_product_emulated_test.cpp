#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "mhla/cuda/tile/lower_product.cuh"
#include "mhla/cuda/tile/shared_tile.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

/// Small integers: sums of their products are exact, in any order.
double weight(std::uint32_t r, std::uint32_t c) {
  return c > r ? 0 : static_cast<double>((r * 7 + c * 3) % 9) - 4;
}
double value(std::uint32_t row, std::uint32_t column) {
  return static_cast<double>((row * 13 + column * 5) % 11) - 5;
}

/// 16 rows of the product where value (at, column) is `special`, in rows 16.. of the tile.
template <class T, class Tile>
void expect_product(std::uint32_t at, std::uint32_t column, double special) {
  constexpr int kTiles = Tile::kPieces;
  const auto own_value = [&](std::uint32_t row, std::uint32_t c) {
    return row == at && c == column ? special : value(row, c);
  };
  static float sums[32][kTiles][4];
  emulator::Device device(at);
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    const SharedTile<16, 64> weights{ptx::shared_begin()};
    const Tile values{weights.begin + SharedTile<16, 64>::kBytes};
    cuda_test::fill_tile(weights, lane, [](std::uint32_t r, std::uint32_t c) {
      return std::uint32_t{cuda_test::from_double<T>(c < 16 ? weight(r, c) : 0).bits};
    });
    cuda_test::fill_tile(values, lane, [&](std::uint32_t row, std::uint32_t c) {
      // Rows before and behind the 16 are of others.
      const bool own = 16 <= row && row < 32;
      return std::uint32_t{
          cuda_test::from_double<T>(own ? own_value(row - 16, c) : cuda_test::kNan).bits};
    });
    for (auto& c : sums[lane]) c[0] = c[1] = c[2] = c[3] = 0.5f;
    const auto rows = load_rows(weights, 0, lane);
    multiply_lower<T>(sums[lane], {{rows.x[0], rows.x[1], rows.x[2], rows.x[3]}}, values, 16, lane);
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  EXPECT_EQ(report.count("mma") == 0, !std::isfinite(special));
  for (std::uint32_t r = 0; r < 16; ++r) {
    for (std::uint32_t c = 0; c < Tile::kColumns; ++c) {
      double expected = 0.5;
      for (std::uint32_t k = 0; k <= r; ++k) expected += weight(r, k) * own_value(k, c);
      const auto found = static_cast<double>(sums[r % 8 * 4 + c % 8 / 2][c / 8][r / 8 * 2 + c % 2]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(found)) << "row " << r << ", column " << c;
      } else {
        ASSERT_EQ(found, expected) << "row " << r << ", column " << c;
      }
    }
  }
}

TEST(LowerProduct, RowsHaveNothingOfLaterValues) {
  for (const double special : {3.0, cuda_test::kInfinity, -cuda_test::kInfinity, cuda_test::kNan}) {
    for (const std::uint32_t at : {0u, 1u, 7u, 8u, 14u, 15u}) {
      expect_product<bfloat16, SharedTile<48, 64>>(at, 37, special);
      expect_product<half, SharedTile<48, 72>>(at, 71, special);
      expect_product<half, SharedTile<32, 128>>(at, 0, special);
    }
  }
}

TEST(LowerProduct, LargestNumbersAreFinite) {
  expect_product<half, SharedTile<32, 64>>(15, 1, -65504);
}

}  // namespace
}  // namespace mhla::cuda
