#include <gtest/gtest.h>

#include <cstdint>

#include "mhla/cuda/tile/key_value_product.cuh"
#include "mhla/cuda/tile/shared_tile.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

/// Small integers: sums of their products are exact, in any order.
double tile_number(std::uint32_t tile, std::uint32_t row, std::uint32_t column) {
  return static_cast<double>((tile * 5 + row * 31 + column * 7) % 15) - 7;
}
double relu(double x) { return x > 0 ? x + 1 : 1; }
/// Slots that hold a token. phi is 1 where they hold none, v is 0.
bool is_filled(std::uint32_t row) { return row % 5 != 2; }

template <class T>
auto numbers(std::uint32_t tile, bool values) {
  return [=](std::uint32_t row, std::uint32_t column) {
    const double x = is_filled(row) ? tile_number(tile, row, column) : 0;
    return std::uint32_t{
        cuda_test::from_double<T>(values ? x : tile_number(tile, row, column)).bits};
  };
}

/// 16 kRowTiles rows of phi(K)^T V from columns 8 key_piece.. of k and 8 value_piece.. of v, twice:
/// rows 0 to 15 and 16 to 31 of the tiles.
template <class T, class KeyTile, class ValueTile, int kRowTiles, int kTiles>
void expect_sums(std::uint32_t key_piece, std::uint32_t value_piece) {
  static float sums[32][kRowTiles][kTiles][4], key_sums[32][kRowTiles][4];
  emulator::Device device(1);
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    const KeyTile k{ptx::shared_begin()};
    const ValueTile v{k.begin + (KeyTile::kBytes + 1023) / 1024 * 1024};
    const std::uint32_t filled = v.begin + ValueTile::kBytes;
    if (lane < 16) {
      ptx::store_shared(filled + 4 * lane, ptx::pack<T>(is_filled(2 * lane) ? 1.0f : 0.0f,
                                                        is_filled(2 * lane + 1) ? 1.0f : 0.0f));
    }
    cuda_test::fill_tile(k, lane, numbers<T>(0, false));
    cuda_test::fill_tile(v, lane, numbers<T>(1, true));
    for (auto& tile : sums[lane]) {
      for (auto& c : tile) c[0] = c[1] = c[2] = c[3] = 0.5f;
    }
    for (auto& c : key_sums[lane]) c[0] = c[1] = c[2] = c[3] = 0.25f;
    for (std::uint32_t row = 0; row < 32; row += 16) {
      multiply_key_values<T>(sums[lane], key_sums[lane], k, v, load_column(filled + 2 * row, lane),
                             row, key_piece, value_piece, FeatureMap::relu(1), lane);
    }
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  for (std::uint32_t r = 0; r < 16 * kRowTiles; ++r) {
    const std::uint32_t column = 8 * key_piece + r;
    if (column >= KeyTile::kColumns) continue;  // beyond the last piece it is read again
    const std::uint32_t tile = r / 16, first = r % 8 * 4, second = r % 16 / 8 * 2;
    double key_sum = 0.25;
    for (std::uint32_t t = 0; t < 32; ++t) {
      if (is_filled(t)) key_sum += relu(tile_number(0, t, column));
    }
    for (std::uint32_t lane = first; lane < first + 4; ++lane) {
      EXPECT_EQ(static_cast<double>(key_sums[lane][tile][second]), key_sum) << "row " << r;
    }
    for (std::uint32_t c = 0; c < 8 * kTiles; ++c) {
      double sum = 0.5;
      for (std::uint32_t t = 0; t < 32; ++t) {
        if (is_filled(t))
          sum += relu(tile_number(0, t, column)) * tile_number(1, t, 8 * value_piece + c);
      }
      const float found = sums[first + c % 8 / 2][tile][c / 8][second + c % 2];
      ASSERT_EQ(static_cast<double>(found), sum) << "row " << r << ", column " << c;
    }
  }
}

TEST(KeyValueProduct, SumsOverFilledSlots) {
  expect_sums<bfloat16, SharedTile<32, 64>, SharedTile<32, 64>, 1, 8>(2, 0);
  expect_sums<half, SharedTile<32, 64>, SharedTile<32, 64>, 2, 4>(4, 3);
  expect_sums<bfloat16, SharedTile<32, 72>, SharedTile<32, 72>, 1, 5>(8, 4);
  expect_sums<half, SharedTile<32, 72>, SharedTile<32, 72>, 1, 9>(0, 0);
  expect_sums<bfloat16, SharedTile<32, 128>, SharedTile<32, 256>, 2, 6>(12, 26);
}

}  // namespace
}  // namespace mhla::cuda
