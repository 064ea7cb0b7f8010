#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "mhla/cuda/tile/box_vector.cuh"
#include "mhla/cuda/tile/shared_tile.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

/// Floats lie one behind another in rows of 128 bytes, then bits 4 to 6 of the address are replaced
/// by their exclusive or with bits 7 to 9.
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
  const TensorBox box = BoxVector<128>::box(array, 7, 3);
  EXPECT_EQ(box.bytes(), 512u);
  EXPECT_EQ(box.box[0] * box.box[1], 256u);  // 16-bit halves of 128 floats
  EXPECT_EQ(box.extent[2], 7u);
  EXPECT_EQ(box.extent[3], 3u);
  EXPECT_EQ(box.stride[0], 128u);
  EXPECT_EQ(box.stride[1], 512u);
  EXPECT_EQ(box.stride[2], 7u * 512);
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
      ptx::store_shared_float(vector.at(c), weight(c));
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

}  // namespace
}  // namespace mhla::cuda
