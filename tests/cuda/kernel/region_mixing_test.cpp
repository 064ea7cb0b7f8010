#include "mhla/cuda/kernel/region_mixing.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "mhla/cuda/tile/layout.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

/// Small integers: sums of their products are exact, and 8 bits hold them.
double region_number(std::uint32_t region, std::uint32_t row, std::uint32_t column) {
  return static_cast<double>((region * 3 + row * 5 + column) % 7) - 3;
}
/// A matrix with three nonzero numbers per row.
float weight(std::uint32_t i, std::uint32_t b) {
  return (i + b) % 6 == 0 ? static_cast<float>(i % 5) - static_cast<float>(b % 3) : 0.0f;
}

/// Regions from `columns` on hold NaN and must not be read. Regions from `rows` on must not change.
template <class T, class Regions, int kRegions, int kWarps, int kSteps>
void expect_mixed(std::uint32_t rows, std::uint32_t columns) {
  constexpr std::int64_t kStride = 40;
  cuda_test::Array<float> m(kStride * 32);
  for (std::uint32_t i = 0; i < rows; ++i) {
    for (std::uint32_t b = 0; b < columns; ++b) m[i * kStride + b] = weight(i, b);
  }
  constexpr std::uint32_t kWords = Regions::kRows * Regions::kColumns / 2;
  std::vector<std::uint32_t> seen(kRegions * kWords);
  constexpr auto each_word = [](std::uint32_t thread, auto f) {
    for (std::uint32_t i = thread; i < kRegions * kWords; i += 32 * kWarps) {
      f(i, i / kWords, i % kWords / (Regions::kColumns / 2), i % (Regions::kColumns / 2) * 2);
    }
  };
  emulator::Device device(rows + columns);
  device.track("m", m.data(), m.bytes(), emulator::Access::kRead);
  cuda_test::in_block<32 * kWarps, 160 * 1024>(device, [&](std::uint32_t thread) {
    const std::uint32_t zeros = ptx::shared_begin();
    const Regions regions{zeros + 128};
    if (thread < 32) ptx::st_shared(zeros + 4 * thread, 0);
    each_word(thread, [&](std::uint32_t, std::uint32_t b, std::uint32_t r, std::uint32_t c) {
      const std::uint32_t word = b < columns
                                     ? ptx::pack<T>(static_cast<float>(region_number(b, r, c)),
                                                    static_cast<float>(region_number(b, r, c + 1)))
                                     : 0xFFFFFFFFu;
      ptx::st_shared(regions.piece(b, r, c / 8) + c % 8 * 2, word);
    });
    ptx::bar_sync();
    const auto operand = load_mixing<T, kSteps>(m.data(), kStride, rows, columns, thread % 32);
    mix_regions<T, kWarps>(regions, operand, zeros, rows, columns, thread / 32, thread % 32);
    ptx::bar_sync();
    each_word(thread, [&](std::uint32_t i, std::uint32_t b, std::uint32_t r, std::uint32_t c) {
      seen[i] = ptx::ld_shared(regions.piece(b, r, c / 8) + c % 8 * 2);
    });
  });
  for (std::uint32_t i = 0; i < kRegions * kWords; ++i) {
    const std::uint32_t region = i / kWords, r = i % kWords / (Regions::kColumns / 2);
    for (std::uint32_t odd = 0; odd < 2; ++odd) {
      const std::uint32_t c = i % (Regions::kColumns / 2) * 2 + odd;
      const std::uint32_t bits = odd == 0 ? seen[i] & 0xFFFF : seen[i] >> 16;
      double expected = 0;
      for (std::uint32_t b = 0; b < columns; ++b) {
        expected += static_cast<double>(weight(region, b)) * region_number(b, r, c);
      }
      std::uint32_t bits_expected = cuda_test::from_double<T>(expected).bits;
      if (region >= rows) {
        bits_expected = region < columns
                            ? cuda_test::from_double<T>(region_number(region, r, c)).bits
                            : 0xFFFFu;
      }
      ASSERT_EQ(bits & (bits_expected == 0 ? 0x7FFFu : 0xFFFFu), bits_expected)
          << "region " << region << ", row " << r << ", column " << c;
    }
  }
}

TEST(RegionMixing, ReplacesRegionsByTheirMixtures) {
  expect_mixed<bfloat16, SummaryRegions<16, 64, 64>, 16, 8, 1>(16, 16);
  expect_mixed<half, SummaryRegions<16, 64, 64>, 16, 4, 1>(16, 16);
  expect_mixed<bfloat16, SummaryRegions<16, 24, 72>, 16, 3, 1>(16, 16);
  expect_mixed<half, SummaryRegions<24, 16, 128>, 24, 8, 2>(24, 24);
}

TEST(RegionMixing, TakesAsManyAsThereAre) {
  for (const std::uint32_t columns : {1u, 5u, 8u, 13u, 16u}) {
    for (const std::uint32_t rows : {1u, 7u, 9u, 16u}) {
      expect_mixed<bfloat16, SummaryRegions<16, 16, 64>, 16, 2, 1>(rows, columns);
      expect_mixed<half, SummaryRegions<16, 8, 72>, 16, 2, 1>(rows, columns);
    }
  }
  expect_mixed<bfloat16, SummaryRegions<32, 8, 64>, 32, 2, 2>(17, 31);
  expect_mixed<bfloat16, SummaryRegions<4, 8, 128>, 4, 2, 1>(3, 4);
}

// m = high + low: bfloat16 represents the parts of 1 + 2^-12, but not the sum.
TEST(RegionMixing, WeightsHaveTwoParts) {
  MixingOperand<1> operands[32];
  cuda_test::Array<float> m(16 * 16);
  for (std::int64_t i = 0; i < m.size(); ++i) m[i] = 1.0f + 0x1p-12f * static_cast<float>(i % 2);
  emulator::Device device;
  device.track("m", m.data(), m.bytes(), emulator::Access::kRead);
  cuda_test::in_block(device, [&](std::uint32_t lane) {
    operands[lane] = load_mixing<bfloat16, 1>(m.data(), 16, 16, 16, lane);
  });
  for (const auto& operand : operands) {
    for (int w = 0; w < 4; ++w) {
      EXPECT_EQ(operand.high[0][0].x[w], ptx::pack<bfloat16>(1, 1));
      EXPECT_EQ(operand.low[0][0].x[w], ptx::pack<bfloat16>(0, 0x1p-12f));
    }
  }
}

}  // namespace
}  // namespace mhla::cuda
