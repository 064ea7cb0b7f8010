#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/triangular_product.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

namespace finite_check_tests {

/// Tries every number in each place of four pairs whose other numbers are the greatest finite one.
template <class T>
void expect_found() {
  constexpr std::uint32_t kGreatest = std::is_same_v<T, bfloat16> ? 0x7F7F : 0x7BFF;
  emulator::Device device;
  cuda_test::in_block(device, [](std::uint32_t) {
    for (std::uint32_t x = 0; x < 0x10000; ++x) {
      const bool finite = std::isfinite(cuda_test::to_double(T{static_cast<std::uint16_t>(x)}));
      const std::uint32_t place = x % 8, shift = place % 2 * 16;
      ptx::Words4 pairs;
      for (std::uint32_t& pair : pairs.x) pair = kGreatest << 16 | kGreatest;
      pairs.x[place / 2] = x << shift | kGreatest << (16 - shift);
      FiniteCheck<T> check;
      check.add(pairs);
      check.add({});
      ASSERT_EQ(check.any_not_finite(), !finite) << x;
    }
  });
}

TEST(FiniteCheck, FindsInfinitiesAndNan) {
  expect_found<bfloat16>();
  expect_found<half>();
}

TEST(FiniteCheck, AllThreadsOfTheWarpKnow) {
  for (const std::uint32_t pair : {0x7BFF7BFFu, 0x7C00u, 0x7C000000u}) {
    for (std::uint32_t thread = 0; thread < 64; thread += 9) {
      emulator::Device device(thread);
      cuda_test::in_block<64>(device, [&](std::uint32_t index) {
        FiniteCheck<half> check;
        if (index == thread) check.add({{0, pair, 0, 0}});
        const bool expected = pair != 0x7BFF7BFFu && index / 32 == thread / 32;
        EXPECT_EQ(check.any_not_finite(), expected) << index << " " << thread;
      });
    }
  }
}

}  // namespace finite_check_tests

namespace lower_product_tests {

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
  const auto value_of = [&](std::uint32_t row, std::uint32_t c) {
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
      // Rows before and after the 16 belong to other products.
      const bool inside = 16 <= row && row < 32;
      return std::uint32_t{
          cuda_test::from_double<T>(inside ? value_of(row - 16, c) : cuda_test::kNan).bits};
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
      for (std::uint32_t k = 0; k <= r; ++k) expected += weight(r, k) * value_of(k, c);
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

}  // namespace lower_product_tests

namespace earlier_product_tests {

constexpr int kEarlierTiles = 4;

/// Small integers: sums of their products are exact, in any order.
double factor(int part, int r, int k) { return k >= r ? 0 : (r * 7 + k * 3 + part * 5) % 9 - 4; }
double part_number(int part, int k, int column) {
  return (k * 13 + column * 5 + part * 3) % 11 - 5;
}

template <class T>
std::uint32_t batch_head(double low, double high) {
  return std::uint32_t{cuda_test::from_double<T>(low).bits} |
         std::uint32_t{cuda_test::from_double<T>(high).bits} << 16;
}

/// 16 rows of the product where number (at, column) of `part` of b is `special`.
template <class T, int kParts>
void expect_product(int part, int at, int column, double special) {
  const auto number_of = [&](int number_part, int k, int c) {
    return number_part == part && k == at && c == column ? special : part_number(number_part, k, c);
  };
  static float sums[32][kEarlierTiles][4];
  emulator::Device device(static_cast<std::uint64_t>(at));
  cuda_test::in_block(device, [&](std::uint32_t lane) {
    const int g = static_cast<int>(lane / 4), p = static_cast<int>(lane % 4 * 2);
    ptx::Words4 a[2], b[kParts][kEarlierTiles / 2];
    for (int i = 0; i < 2; ++i) {
      for (int w = 0; w < 4; ++w) {
        const int r = g + w % 2 * 8, k = p + w / 2 * 8;
        a[i].x[w] = batch_head<T>(factor(i, r, k), factor(i, r, k + 1));
      }
    }
    for (int i = 0; i < kParts; ++i) {
      for (int w = 0; w < 2 * kEarlierTiles; ++w) {
        const int k = p + w % 2 * 8, c = w / 2 * 8 + g;
        b[i][w / 4].x[w % 4] = batch_head<T>(number_of(i, k, c), number_of(i, k + 1, c));
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
        expected += (factor(0, r, k) + factor(1, r, k)) * number_of(0, k, c);
        if (kParts == 2) expected += factor(0, r, k) * number_of(1, k, c);
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

}  // namespace earlier_product_tests

}  // namespace
}  // namespace mhla::cuda
