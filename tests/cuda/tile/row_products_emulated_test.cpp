#include <gtest/gtest.h>

#include <cstdint>

#include "mhla/cuda/tile/row_products.cuh"
#include "mhla/cuda/tile/row_sums.cuh"
#include "mhla/cuda/tile/shared_tile.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

/// Small integers: sums of their products are exact, in any order.
double row_number(std::uint32_t row, std::uint32_t column) {
  return static_cast<double>((row * 37 + column * 11) % 17) - 8;
}
float weight(std::uint32_t column) { return static_cast<float>(column % 13) - 5.5f; }

/// The products of 16 rows with the weights, and the sums of their elements, by each thread.
template <class T, class Tile>
void expect_products_and_sums() {
  RowPair products[32], sums[32];
  emulator::Device device(1);
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    const Tile tile{ptx::shared_begin()};
    const std::uint32_t vector = tile.begin + Tile::kBytes;
    for (std::uint32_t c = lane; c < Tile::kColumns; c += 32) {
      ptx::store_shared_float(vector + 4 * c, weight(c));
    }
    cuda_test::fill_tile(tile, lane, [](std::uint32_t row, std::uint32_t column) {
      return std::uint32_t{cuda_test::from_double<T>(row_number(row, column)).bits};
    });
    const auto rows = load_rows(tile, 0, lane);
    products[lane] = row_products<T>(rows, vector, lane);
    RowPair own{1, -1};
    add_elements<T>(own, rows);
    add_elements<T>(own, rows);
    sums[lane] = over_row(own);
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const auto expect_row = [&](std::uint32_t row, float product, float sum, double begin) {
      double expected_product = 0, expected_sum = 4 * begin;  // each of four threads began with it
      for (std::uint32_t c = 0; c < Tile::kColumns; ++c) {
        expected_product += row_number(row, c) * static_cast<double>(weight(c));
        expected_sum += 2 * row_number(row, c);
      }
      EXPECT_EQ(static_cast<double>(product), expected_product) << "lane " << lane;
      EXPECT_EQ(static_cast<double>(sum), expected_sum) << "lane " << lane;
    };
    expect_row(lane / 4, products[lane].x, sums[lane].x, 1);
    expect_row(lane / 4 + 8, products[lane].x_8, sums[lane].x_8, -1);
  }
}

TEST(RowProducts, AllThreadsOfARowHaveItsProductAndSum) {
  expect_products_and_sums<bfloat16, SharedTile<16, 64>>();
  expect_products_and_sums<half, SharedTile<16, 72>>();
  expect_products_and_sums<bfloat16, SharedTile<16, 128>>();
}

}  // namespace
}  // namespace mhla::cuda
