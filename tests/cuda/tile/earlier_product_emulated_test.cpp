#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "mhla/cuda/tile/earlier_product.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

constexpr int kEarlierTiles = 4;

/// Small integers: sums of their products are exact, in any order.
double factor(int part, int r, int k) { return k >= r ? 0 : (r * 7 + k * 3 + part * 5) % 9 - 4; }
double part_number(int part, int k, int column) {
  return (k * 13 + column * 5 + part * 3) % 11 - 5;
}

template <class T>
std::uint32_t pair_of(double low, double high) {
  return std::uint32_t{cuda_test::from_double<T>(low).bits} |
         std::uint32_t{cuda_test::from_double<T>(high).bits} << 16;
}

/// 16 rows of the product where number (at, column) of `part` of b is `special`.
template <class T, int kParts>
void expect_product(int part, int at, int column, double special) {
  const auto own_number = [&](int own_part, int k, int c) {
    return own_part == part && k == at && c == column ? special : part_number(own_part, k, c);
  };
  static float sums[32][kEarlierTiles][4];
  emulator::Device device(static_cast<std::uint64_t>(at));
  cuda_test::in_block(device, [&](std::uint32_t lane) {
    const int g = static_cast<int>(lane / 4), p = static_cast<int>(lane % 4 * 2);
    ptx::Words4 a[2], b[kParts][kEarlierTiles / 2];
    for (int i = 0; i < 2; ++i) {
      for (int w = 0; w < 4; ++w) {
        const int r = g + w % 2 * 8, k = p + w / 2 * 8;
        a[i].x[w] = pair_of<T>(factor(i, r, k), factor(i, r, k + 1));
      }
    }
    for (int i = 0; i < kParts; ++i) {
      for (int w = 0; w < 2 * kEarlierTiles; ++w) {
        const int k = p + w % 2 * 8, c = w / 2 * 8 + g;
        b[i][w / 4].x[w % 4] = pair_of<T>(own_number(i, k, c), own_number(i, k + 1, c));
      }
    }
    for (auto& c : sums[lane]) c[0] = c[1] = c[2] = c[3] = 0.5f;
    EXPECT_EQ(any_not_finite<T>(b), !std::isfinite(special));
    multiply_earlier<T>(sums[lane], a[0], a[1], b, lane);
  });
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 8 * kEarlierTiles; ++c) {
      double expected = 0.5;
      for (int k = 0; k < r; ++k) {
        expected += (factor(0, r, k) + factor(1, r, k)) * own_number(0, k, c);
        if (kParts == 2) expected += factor(0, r, k) * own_number(1, k, c);
      }
      const float found = sums[r % 8 * 4 + c % 8 / 2][c / 8][r / 8 * 2 + c % 2];
      if (!std::isfinite(expected)) {
        ASSERT_FALSE(std::isfinite(found)) << "row " << r << ", column " << c;
      } else {
        ASSERT_EQ(found, expected) << "row " << r << ", column " << c;
      }
    }
  }
}

TEST(EarlierProduct, RowsHaveNothingOfTheirOwnAndLaterNumbers) {
  for (const double special : {3.0, cuda_test::kInfinity, -cuda_test::kInfinity, cuda_test::kNan}) {
    for (const int at : {0, 1, 2, 7, 8, 9, 14, 15}) {
      expect_product<bfloat16, 1>(0, at, 17, special);
      expect_product<half, 2>(0, at, 0, special);
      expect_product<half, 2>(1, at, 31, special);
    }
  }
}

TEST(EarlierProduct, LargestNumbersAreFinite) { expect_product<half, 1>(0, 15, 1, -65504); }

}  // namespace
}  // namespace mhla::cuda
