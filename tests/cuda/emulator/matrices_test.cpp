/// \file
/// Fragments of matrix loads and products against the tables of the PTX manual, and numbers of 16
/// bits against their formats.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "emulator/device.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace emulator {
namespace {

using mhla::cuda::bfloat16;
using mhla::cuda::half;
namespace ptx = mhla::cuda::ptx;

// -------------------------------------------------------------------------------------------------
// Matrix loads. PTX ISA, ldmatrix: of row r of a matrix, thread 4 r + c / 2 gets element c.

/// Writes matrix i, row r at 16 (37 (8 i + r) % 64), so that rows are scattered, and loads it.
struct Loads {
  struct Words {
    std::uint16_t words[4][32][4][2];  ///< [instruction][thread][matrix][half]
  };
  using Params = Words*;
  static constexpr int kThreads = 32, kSharedBytes = 1024;

  void operator()(const Params& p) const {
    const std::uint32_t lane = ptx::tid_x();
    const std::uint32_t row = ptx::shared_begin() + 16 * (37 * lane % 64);
    for (std::uint32_t i = 0; i < 4; ++i) {  // element (i, r, c) is 64 i + 8 r + c
      ptx::st_shared(row + 4 * i, (8 * lane + 2 * i) | (8 * lane + 2 * i + 1) << 16);
    }
    ptx::bar_warp_sync();
    keep(p->words[0][lane], ptx::ldmatrix_x4(row));
    keep(p->words[1][lane], ptx::ldmatrix_x4_trans(row));
    keep(p->words[2][lane], ptx::ldmatrix_x2(row));
    keep(p->words[3][lane], ptx::ldmatrix_x2_trans(row));
  }
  template <class W>
  static void keep(std::uint16_t (&to)[4][2], const W& w) {
    for (std::size_t i = 0; i < std::size(w.x); ++i) {
      to[i][0] = static_cast<std::uint16_t>(w.x[i]);
      to[i][1] = static_cast<std::uint16_t>(w.x[i] >> 16);
    }
  }
};

TEST(EmulatorMatrix, LoadsGiveTheFragmentsOfTheManual) {
  Loads::Words p{};
  const Report report = Device(1).launch<Loads>(1, &p);
  for (int i = 0; i < 4; ++i) {
    for (int r = 0; r < 8; ++r) {
      for (int c = 0; c < 8; ++c) {
        const int element = 64 * i + 8 * r + c;
        EXPECT_EQ(p.words[0][4 * r + c / 2][i][c % 2], element);
        EXPECT_EQ(p.words[1][4 * c + r / 2][i][r % 2], element);
        if (i >= 2) continue;
        EXPECT_EQ(p.words[2][4 * r + c / 2][i][c % 2], element);
        EXPECT_EQ(p.words[3][4 * c + r / 2][i][r % 2], element);
      }
    }
  }
  EXPECT_EQ(report.count("matrix loads"), 4u);
}

// -------------------------------------------------------------------------------------------------
// Products. PTX ISA, "Matrix Fragments for mma.m16n8k16" and "... mma.m16n8k8", by the manual's own
// formulas; an element is one 16-bit number there, two to a word here.

struct Place2 {
  int row, column;
};
Place2 place_a16(int lane, int i) {
  return {i < 2 || (i >= 4 && i < 6) ? lane / 4 : lane / 4 + 8,
          (lane % 4) * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}
Place2 place_a8(int lane, int i) {
  return {i < 2 ? lane / 4 : lane / 4 + 8, (lane % 4) * 2 + (i & 1)};
}
Place2 place_b(int lane, int i) { return {(lane % 4) * 2 + (i & 1) + (i >= 2 ? 8 : 0), lane / 4}; }
Place2 place_c(int lane, int i) {
  return {i < 2 ? lane / 4 : lane / 4 + 8, (lane % 4) * 2 + (i & 1)};
}

struct Product {
  float a[16][16] = {}, b[16][8] = {}, c[16][8] = {};
};

template <class T, int kK>
struct ProductKernel {
  using Params = Product*;
  static constexpr int kThreads = 32, kSharedBytes = 0;

  void operator()(Product* const& p) const {
    const int lane = static_cast<int>(ptx::tid_x());
    const auto a = [&](int i) {
      const Place2 at = kK == 16 ? place_a16(lane, i) : place_a8(lane, i);
      return p->a[at.row][at.column];
    };
    const auto b = [&](int i) { return p->b[place_b(lane, i).row][place_b(lane, i).column]; };
    const auto word = [](auto x, int i) { return ptx::pack<T>(x(2 * i), x(2 * i + 1)); };
    float c[4];
    for (int i = 0; i < 4; ++i) c[i] = p->c[place_c(lane, i).row][place_c(lane, i).column];
    if constexpr (kK == 16) {
      ptx::mma_m16n8k16<T>(c, word(a, 0), word(a, 1), word(a, 2), word(a, 3), word(b, 0),
                           word(b, 1));
    } else {
      ptx::mma_m16n8k8<T>(c, word(a, 0), word(a, 1), word(b, 0));
    }
    for (int i = 0; i < 4; ++i) p->c[place_c(lane, i).row][place_c(lane, i).column] = c[i];
  }
};

template <class T, int kK>
void check_product() {
  Product p;
  std::uint32_t state = 1;
  const auto next = [&state] {
    state = state * 1664525 + 1013904223;
    return static_cast<float>(static_cast<int>(state >> 24 & 31) - 16);
  };
  const auto fill = [&](auto& rows, float scale) {
    for (auto& row : rows) {
      for (float& x : row) x = scale * next();
    }
  };
  fill(p.a, 1);
  fill(p.b, 1);
  fill(p.c, 1000);
  Product result = p;
  const Report report = Device(2).launch<ProductKernel<T, kK>>(1, &result);
  EXPECT_EQ(report.count("mma"), 1u);
  for (int r = 0; r < 16; ++r) {
    for (int n = 0; n < 8; ++n) {
      int sum = static_cast<int>(p.c[r][n]);
      for (int k = 0; k < kK; ++k) sum += static_cast<int>(p.a[r][k]) * static_cast<int>(p.b[k][n]);
      EXPECT_EQ(result.c[r][n], static_cast<float>(sum)) << r << " " << n;
    }
  }
}
TEST(EmulatorMatrix, ProductsOfTheFragmentsOfTheManual) {
  check_product<bfloat16, 16>();
  check_product<half, 16>();
  check_product<bfloat16, 8>();
  check_product<half, 8>();
}

TEST(EmulatorMatrix, ProductsAddInOrderAndKeepNan) {
  Product p;
  for (int k = 0; k < 16; ++k) p.a[0][k] = p.b[k][0] = 1;
  p.c[0][0] = 0x1p24f;  // adding 1 rounds to even: back
  p.a[2][5] = std::numeric_limits<float>::quiet_NaN();
  p.a[3][0] = p.a[3][15] = 0x1p12f;  // 2^24 first, then ones that get lost
  p.b[15][1] = -0x1p12f, p.b[0][1] = 0x1p12f;
  p.a[3][7] = 1, p.b[7][1] = 1;
  Device(0).launch<ProductKernel<bfloat16, 16>>(1, &p);
  EXPECT_EQ(p.c[0][0], 0x1p24f);
  EXPECT_EQ(p.c[3][1], 0.0f);
  for (const float x : p.c[2]) EXPECT_TRUE(std::isnan(x));
  for (const float x : p.c[4]) EXPECT_EQ(x, 0.0f);
}

// -------------------------------------------------------------------------------------------------
// Numbers

/// The value of bits by the format: `digits` bits of mantissa, exponents biased by `bias`.
double value(std::uint32_t bits, int digits, int bias) {
  const int exponent = static_cast<int>(bits >> digits);
  const double mantissa = bits & ((1u << digits) - 1);
  return exponent == 0 ? std::ldexp(mantissa, 1 - bias - digits)
                       : std::ldexp(mantissa + (1 << digits), exponent - bias - digits);
}

/// All nonnegative numbers below the infinity's bits: themselves, and what lies between them and
/// the next.
template <class T>
void check_numbers(std::uint32_t infinity, int digits, int bias) {
  constexpr float kFar = std::numeric_limits<float>::infinity();
  const auto to = [](float x) { return ptx::pack<T>(0, x) >> 16; };
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const double x = value(bits, digits, bias), next = value(bits + 1, digits, bias);
    ASSERT_EQ(ptx::low<T>(bits), x);
    ASSERT_EQ(ptx::high<T>(bits << 16), x);
    ASSERT_EQ(ptx::low<T>(bits | 0x8000), -x);
    const auto middle = static_cast<float>((x + next) / 2);
    ASSERT_EQ(to(static_cast<float>(x)), bits);
    ASSERT_EQ(to(-static_cast<float>(x)), bits | 0x8000);
    ASSERT_EQ(to(middle), bits + bits % 2) << x;  // the even one
    ASSERT_EQ(to(std::nextafter(middle, 0.0f)), bits) << x;
    ASSERT_EQ(to(std::nextafter(middle, kFar)), bits + 1) << x;
    ASSERT_EQ(to(-middle), (bits + bits % 2) | 0x8000);
  }
  EXPECT_EQ(to(kFar), infinity);
  EXPECT_EQ(to(-kFar), infinity | 0x8000);
  EXPECT_EQ(to(std::numeric_limits<float>::max()), infinity);
  EXPECT_EQ(ptx::low<T>(infinity), kFar);
  EXPECT_TRUE(std::isnan(ptx::low<T>(infinity + 1)));
  EXPECT_TRUE(std::isnan(ptx::low<T>(0xFFFF)));
  const std::uint32_t nan = ptx::pack<T>(std::bit_cast<float>(0x7F800001u), -0.0f);
  EXPECT_TRUE(std::isnan(ptx::low<T>(nan)));
  EXPECT_TRUE(std::signbit(ptx::high<T>(nan)));
}
TEST(EmulatorMatrix, NumbersOf16Bits) {
  check_numbers<bfloat16>(0x7F80, 7, 127);
  check_numbers<half>(0x7C00, 10, 15);
}

template <class T>
void check_pairs() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto greater = [](float x, float y) {
    return ptx::max_nan_x2<T>(ptx::pack<T>(x, -x), ptx::pack<T>(y, -y));
  };
  EXPECT_EQ(greater(1, 2), ptx::pack<T>(2, -1));
  EXPECT_TRUE(std::isnan(ptx::low<T>(greater(1, nan))));
  EXPECT_TRUE(std::isnan(ptx::high<T>(greater(nan, 1))));
  EXPECT_EQ(greater(-0.0f, 0.0f), 0u);
  EXPECT_EQ(greater(0.0f, -0.0f), 0u);
  // The last digit of 1 is 2 unit, and ties go to the even one.
  const float unit = std::is_same_v<T, half> ? 0x1p-11f : 0x1p-8f;
  EXPECT_EQ(ptx::add_x2<T>(ptx::pack<T>(1, 1 + 2 * unit), ptx::pack<T>(unit, unit)),
            ptx::pack<T>(1, 1 + 4 * unit));
  EXPECT_EQ(ptx::add_x2<T>(ptx::pack<T>(-0.0f, 3), 0), ptx::pack<T>(0, 3));
  EXPECT_TRUE(std::isnan(ptx::high<T>(ptx::add_x2<T>(ptx::pack<T>(0, nan), 0))));
  const std::uint32_t kept = ptx::pack<T>(1 + 2 * unit, 3);
  EXPECT_EQ(ptx::add_zero_times_x2<T>(kept, ptx::pack<T>(-5, 7)), kept);
  const std::uint32_t lost =
      ptx::add_zero_times_x2<T>(kept, ptx::pack<T>(-std::numeric_limits<float>::infinity(), nan));
  EXPECT_TRUE(std::isnan(ptx::low<T>(lost)) && std::isnan(ptx::high<T>(lost)));
}
TEST(EmulatorMatrix, GreaterNumbersSumsAndPowers) {
  check_pairs<bfloat16>();
  check_pairs<half>();
  EXPECT_EQ(ptx::ex2_approx(-3), 0.125f);
  EXPECT_EQ(ptx::ex2_approx(-std::numeric_limits<float>::infinity()), 0.0f);
}

}  // namespace
}  // namespace emulator
