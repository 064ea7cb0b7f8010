#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

namespace row_products_tests {

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
      ptx::st_shared_f32(vector + 4 * c, weight(c));
    }
    cuda_test::fill_tile(tile, lane, [](std::uint32_t row, std::uint32_t column) {
      return std::uint32_t{cuda_test::from_double<T>(row_number(row, column)).bits};
    });
    const auto rows = load_rows(tile, 0, lane);
    products[lane] = row_products<T>(rows, vector, lane);
    RowPair sum{1, -1};
    add_elements<T>(sum, rows);
    add_elements<T>(sum, rows);
    sums[lane] = over_row(sum);
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

}  // namespace row_products_tests

namespace row_sums_tests {

// Rows from a tile: row_products_tests above.

TEST(RowSums, ThreadsAddTheirOwnElements) {
  const Fragment<8> rows{{ptx::pack<half>(1, 2), ptx::pack<half>(30, 40)}};
  RowPair sums{100, 1000};
  add_elements<half>(sums, rows);
  EXPECT_EQ(sums.x, 103);
  EXPECT_EQ(sums.x_8, 1070);
}

TEST(RowSums, FourThreadsOfARowAddTheirs) {
  RowPair sums[32];
  emulator::Device device;
  cuda_test::in_block(device, [&](std::uint32_t lane) {
    sums[lane] = over_row({static_cast<float>(lane), static_cast<float>(lane * lane)});
  });
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const auto first = static_cast<float>(lane / 4 * 4);
    EXPECT_EQ(sums[lane].x, 4 * first + 6);
    EXPECT_EQ(sums[lane].x_8, 4 * first * first + 12 * first + 14);
  }
}

}  // namespace row_sums_tests

namespace box_vector_tests {

/// Floats follow each other in rows of 128 bytes. Then bits 4 to 6 of the address are replaced by
/// their exclusive or with bits 7 to 9.
template <int kSize>
constexpr bool is_swizzled() {
  for (std::uint32_t i = 0; i < kSize; ++i) {
    const std::uint32_t linear = 5 * 1024 + 4 * i;
    if (BoxVector<kSize>{5 * 1024}.at(i) != (linear ^ ((linear >> 7 & 7) << 4))) return false;
  }
  return true;
}
static_assert(is_swizzled<64>() && is_swizzled<128>() && is_swizzled<256>());

TEST(BoxVector, BoxIsOneVectorOfTheArray) {
  const float* const array = nullptr;
  const TensorBox box = BoxVector<128>::box(array, 7, 3, 9);
  EXPECT_EQ(box.bytes(), 512u);
  EXPECT_EQ(box.box[0] * box.box[1], 256u);  // 16-bit halves of 128 floats
  EXPECT_EQ(box.extent[2], 7u);
  EXPECT_EQ(box.extent[3], 3u);
  EXPECT_EQ(box.stride[0], 128u);
  EXPECT_EQ(box.stride[1], 512u);
  EXPECT_EQ(box.stride[2], 9u * 512);
}

template <class T, int kColumns>
void expect_products() {
  const auto number = [](std::uint32_t row, std::uint32_t column) {
    return static_cast<double>((row * 37 + column * 11) % 17) - 8;
  };
  const auto weight = [](std::uint32_t column) { return static_cast<float>(column % 13) - 5.5f; };
  std::array<RowPair, 32> products;
  emulator::Device device(1);
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    const SharedTile<16, kColumns> tile{ptx::shared_begin()};
    const BoxVector<kColumns> vector{tile.begin + tile.kBytes};
    for (std::uint32_t c = lane; c < kColumns; c += 32) {
      ptx::st_shared_f32(vector.at(c), weight(c));
    }
    cuda_test::fill_tile(tile, lane, [&](std::uint32_t row, std::uint32_t column) {
      return std::uint32_t{cuda_test::from_double<T>(number(row, column)).bits};
    });
    products[lane] = row_products<T>(load_rows(tile, 0, lane), vector, lane);
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    double sum = 0, sum_8 = 0;
    for (std::uint32_t c = 0; c < kColumns; ++c) {
      sum += number(lane / 4, c) * static_cast<double>(weight(c));
      sum_8 += number(lane / 4 + 8, c) * static_cast<double>(weight(c));
    }
    EXPECT_EQ(static_cast<double>(products[lane].x), sum) << lane;
    EXPECT_EQ(static_cast<double>(products[lane].x_8), sum_8) << lane;
  }
}

TEST(BoxVector, ProductsAreThoseOfItsRows) {
  expect_products<bfloat16, 64>();
  expect_products<half, 128>();
}

}  // namespace box_vector_tests

}  // namespace
}  // namespace mhla::cuda
