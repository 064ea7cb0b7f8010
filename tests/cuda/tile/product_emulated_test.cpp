#include <gtest/gtest.h>

#include <cstdint>

#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

namespace product_tests {

using cuda_test::fill_tile;
using cuda_test::from_double;
using cuda_test::in_block;
using cuda_test::to_double;

/// Small integers: sums of their products are exact, in any order.
double factor(std::uint32_t tile, std::uint32_t row, std::uint32_t column) {
  test::Random rng(tile * 1000003u + row * 1009u + column);
  return static_cast<double>(rng.integer(-9, 9));
}
template <class T>
auto numbers(std::uint32_t tile) {
  return [tile](std::uint32_t row, std::uint32_t column) {
    return std::uint32_t{from_double<T>(factor(tile, row, column)).bits};
  };
}

/// Element (r, c) of 16 rows from the sums of a warp.
template <int kTiles>
struct Sums {
  float c[32][kTiles][4];
  double operator()(std::uint32_t r, std::uint32_t column) const {
    return static_cast<double>(c[r % 8 * 4 + column % 8 / 2][column / 8][r / 8 * 2 + column % 2]);
  }
};

/// Sums start as 100 r + c, so that a product that does not add shows.
template <int kTiles>
void begin(float (&sums)[kTiles][4], std::uint32_t lane) {
  for (std::uint32_t j = 0; j < kTiles; ++j) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      sums[j][i] = static_cast<float>(100 * (lane / 4 + i / 2 * 8) + 8 * j + lane % 4 * 2 + i % 2);
    }
  }
}

/// Expects rows[16, kDepth] (tile 0) times columns from 8 piece on of tile 1's rows from `row` on,
/// or times the transpose of these rows.
template <class T, int kDepth, class Tile, int kTiles, bool kTransposed>
void expect_product(std::uint32_t row, std::uint32_t piece) {
  using Rows = SharedTile<16, kDepth>;
  emulator::Device device(row + piece);
  Sums<kTiles> sums;
  const auto report = in_block(device, [&](std::uint32_t lane) {
    const Rows a{ptx::shared_begin()};
    const Tile b{ptx::shared_begin() + (Rows::kBytes + 1023) / 1024 * 1024};
    fill_tile(a, lane, numbers<T>(0));
    fill_tile(b, lane, numbers<T>(1));
    begin(sums.c[lane], lane);
    const auto rows = load_rows(a, 0, lane);
    if constexpr (kTransposed) {
      multiply_transposed<T>(sums.c[lane], rows, b, row, lane);
    } else {
      multiply<T>(sums.c[lane], rows, b, row, piece, lane);
    }
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  for (std::uint32_t r = 0; r < 16; ++r) {
    for (std::uint32_t n = 0; n < 8 * kTiles; ++n) {
      double expected = 100.0 * r + n;
      for (std::uint32_t k = 0; k < kDepth; ++k) {
        expected += factor(0, r, k) *
                    (kTransposed ? factor(1, row + n, k) : factor(1, row + k, 8 * piece + n));
      }
      ASSERT_EQ(sums(r, n), expected) << "row " << r << ", column " << n;
    }
  }
}

template <class T>
class Product : public testing::Test {};
using Types = testing::Types<bfloat16, half>;
TYPED_TEST_SUITE(Product, Types);

TYPED_TEST(Product, AddsRowsTimesTile) {
  using T = TypeParam;
  expect_product<T, 64, SharedTile<64, 64>, 8, false>(0, 0);
  expect_product<T, 64, SharedTile<80, 128>, 5, false>(16, 3);
  expect_product<T, 64, SharedTile<64, 256>, 1, false>(0, 31);
  expect_product<T, 72, SharedTile<72, 72>, 9, false>(0, 0);
  expect_product<T, 72, SharedTile<80, 72>, 4, false>(8, 5);
  expect_product<T, 72, SharedTile<72, 72>, 1, false>(0, 8);
  expect_product<T, 128, SharedTile<128, 128>, 16, false>(0, 0);
  expect_product<T, 128, SharedTile<128, 256>, 7, false>(0, 9);
}

TYPED_TEST(Product, AddsRowsTimesTransposedTile) {
  using T = TypeParam;
  expect_product<T, 64, SharedTile<64, 64>, 8, true>(0, 0);
  expect_product<T, 64, SharedTile<64, 64>, 2, true>(40, 0);
  expect_product<T, 72, SharedTile<64, 72>, 8, true>(0, 0);
  expect_product<T, 72, SharedTile<64, 72>, 4, true>(24, 0);
  expect_product<T, 128, SharedTile<32, 128>, 4, true>(0, 0);
}

TYPED_TEST(Product, TakesOneStepOfWords) {
  using T = TypeParam;
  emulator::Device device;
  Sums<3> sums;
  in_block(device, [&](std::uint32_t lane) {
    const SharedTile<32, 64> tile{ptx::shared_begin()};
    const SharedTile<32, 64> b{tile.begin + tile.kBytes};
    fill_tile(tile, lane, numbers<T>(0));
    fill_tile(b, lane, numbers<T>(1));
    begin(sums.c[lane], lane);
    const ptx::Words4 a = load_transposed_rows(tile, 8, 2, lane);
    multiply_step<T>(sums.c[lane], a.x[0], a.x[1], a.x[2], a.x[3], b, 8, 4, lane);
  });
  for (std::uint32_t r = 0; r < 16; ++r) {
    for (std::uint32_t n = 0; n < 24; ++n) {
      double expected = 100.0 * r + n;
      for (std::uint32_t k = 0; k < 16; ++k) {
        expected += factor(0, 8 + k, 16 + r) * factor(1, 8 + k, 32 + n);
      }
      ASSERT_EQ(sums(r, n), expected) << "row " << r << ", column " << n;
    }
  }
}

/// C as the next A: (A B) B' with the sums rounded, which 8 bits hold here.
TYPED_TEST(Product, RoundedSumsAreTheNextRows) {
  using T = TypeParam;
  const auto sign = [](std::uint32_t row, std::uint32_t column) {
    return std::uint32_t{from_double<T>(row % 16 == column % 16 ? 2.0 : 0.0).bits};
  };
  emulator::Device device;
  Sums<4> sums{};
  in_block(device, [&](std::uint32_t lane) {
    const SharedTile<16, 64> a{ptx::shared_begin()};
    const SharedTile<64, 64> b{a.begin + a.kBytes};
    const SharedTile<64, 64> c{b.begin + b.kBytes};
    fill_tile(a, lane, numbers<T>(0));
    fill_tile(b, lane, sign);
    fill_tile(c, lane, numbers<T>(1));
    float first[4][4] = {};
    multiply<T>(first, load_rows(a, 0, lane), b, 0, 0, lane);
    multiply<T>(sums.c[lane], rounded<T>(first), c, 0, 0, lane);
  });
  for (std::uint32_t r = 0; r < 16; ++r) {
    for (std::uint32_t n = 0; n < 32; ++n) {
      double expected = 0;
      for (std::uint32_t k = 0; k < 32; ++k) {
        double first = 0;
        for (std::uint32_t i = k % 16; i < 64; i += 16) first += 2 * factor(0, r, i);
        expected += first * factor(1, k, n);
      }
      ASSERT_EQ(sums(r, n), expected) << "row " << r << ", column " << n;
    }
  }
}

TYPED_TEST(Product, RoundsSumsToNearestEven) {
  using T = TypeParam;
  float sums[2][4] = {{1.0f, 1.0f + 0x1p-12f, 1.00390625f, 3.140625f},
                      {-0.1f, 1e-30f, 65519.0f, -1e9f}};
  const Fragment<16> words = rounded<T>(sums);
  for (int j = 0; j < 2; ++j) {
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t word = words.x[2 * j + i / 2];
      const float x = i % 2 == 0 ? ptx::low<T>(word) : ptx::high<T>(word);
      EXPECT_EQ(static_cast<double>(x), cuda_test::round_to<T>(static_cast<double>(sums[j][i])));
    }
  }
}

TYPED_TEST(Product, AppliesTheFeatureMapToRows) {
  using T = TypeParam;
  const FeatureMap map = FeatureMap::relu(0.5f);
  Fragment<8> rows{{ptx::pack<T>(-3, 4), ptx::pack<T>(1.5f, -0.25f)}};
  apply<T>(map, rows);
  EXPECT_EQ(ptx::low<T>(rows.x[0]), 0.5f);
  EXPECT_EQ(ptx::high<T>(rows.x[0]), 4.5f);
  EXPECT_EQ(ptx::low<T>(rows.x[1]), 2.0f);
  EXPECT_EQ(ptx::high<T>(rows.x[1]), 0.5f);
}

}  // namespace product_tests

namespace key_value_product_tests {

/// Small integers: sums of their products are exact, in any order.
double tile_number(std::uint32_t tile, std::uint32_t row, std::uint32_t column) {
  return static_cast<double>((tile * 5 + row * 31 + column * 7) % 15) - 7;
}
double relu(double x) { return x > 0 ? x + 1 : 1; }
/// Slots that hold a token. Other slots have phi = 1 and v = 0.
bool is_filled(std::uint32_t row) { return row % 5 != 2; }

template <class T>
auto numbers(std::uint32_t tile, bool values) {
  return [=](std::uint32_t row, std::uint32_t column) {
    const double x = is_filled(row) ? tile_number(tile, row, column) : 0;
    return std::uint32_t{
        cuda_test::from_double<T>(values ? x : tile_number(tile, row, column)).bits};
  };
}

/// Checks 16 kRowTiles rows of phi(K)^T V, from column 8 key_piece of k and column 8 value_piece of
/// v on. The product adds rows 0 to 15 of the tiles, then rows 16 to 31.
template <class T, class KeyTile, class ValueTile, int kRowTiles, int kTiles>
void expect_sums(std::uint32_t key_piece, std::uint32_t value_piece) {
  static float sums[32][kRowTiles][kTiles][4], key_sums[32][kRowTiles][4];
  emulator::Device device(1);
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    const KeyTile k{ptx::shared_begin()};
    const ValueTile v{k.begin + (KeyTile::kBytes + 1023) / 1024 * 1024};
    const std::uint32_t filled = v.begin + ValueTile::kBytes;
    if (lane < 16) {
      ptx::st_shared(filled + 4 * lane, ptx::pack<T>(is_filled(2 * lane) ? 1.0f : 0.0f,
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
    if (column >= KeyTile::kColumns) continue;  // the last piece of an odd number is read twice
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

}  // namespace key_value_product_tests

}  // namespace
}  // namespace mhla::cuda
