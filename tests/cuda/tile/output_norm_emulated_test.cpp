#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "mhla/cuda/tile/output_norm.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

using cuda_test::in_block;

TEST(OutputNorm, SiluHasTheSignAndTheRangeOfItsArgument) {
  for (float g = -60; g <= 60; g += 0.37f) {
    const double wanted = g / (1 + std::exp(-static_cast<double>(g)));
    EXPECT_NEAR(silu(g), wanted, std::abs(wanted) * (2 * std::abs(g) + 8) * 0x1p-24) << g;
  }
  EXPECT_EQ(silu(0), 0);
  EXPECT_EQ(silu(200), 200);
  EXPECT_EQ(silu(-200), 0);
  EXPECT_EQ(silu(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(silu(NAN)));
}

TEST(OutputNorm, WarpgroupsAddTheSumsOfTheirRows) {
  std::vector<float> sums(512);
  emulator::Device device(1);
  const auto report = in_block<256>(device, [&](std::uint32_t thread) {
    const std::uint32_t warp = thread / 32, lane = thread % 32;
    for (int round = 0; round < 2; ++round) {  // the second overwrites what the first has read
      const float row = static_cast<float>(warp % 4 * 16 + lane / 4 + 100 * round);
      const float scale = warp < 4 ? 1 : 1000;
      const RowPair both =
          over_warpgroups({row * scale, (row + 8) * scale}, ptx::shared_begin(), warp, lane);
      sums[2 * thread] = both.x;
      sums[2 * thread + 1] = both.x_8;
    }
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  for (std::uint32_t thread = 0; thread < 256; ++thread) {
    const auto row = static_cast<float>(thread / 32 % 4 * 16 + thread % 32 / 4 + 100);
    EXPECT_EQ(sums[2 * thread], 1001 * row);
    EXPECT_EQ(sums[2 * thread + 1], 1001 * (row + 8));
  }
}

/// Outputs of two tokens of a head; rows without a token are not gated.
TEST(OutputNorm, RowsBecomeOutputsOfTheirTokens) {
  constexpr int kColumns = 16, kFirst = 64, kWidth = 128;
  cuda_test::Array<float> gain(kWidth);
  cuda_test::Tensor<half> gate(2, 3, 2, kWidth, cuda_test::Layout::padded(3, 2, kWidth));
  for (int e = 0; e < kWidth; ++e) gain[e] = static_cast<float>(e) / 64;
  gate.each([&](int b, int t, int h, int e) {
    gate.at(b, t, h, e) = cuda_test::from_double<half>(b + t / 2.0 - h + e / 256.0);
  });
  const OutputNorm norm{
      .normed = true, .gated = true, .eps = 0.25f, .gain = gain.data(), .gate = gate.input()};
  std::vector<float> seen(32 * kColumns / 2);
  emulator::Device device;
  device.track("gain", gain.data(), gain.bytes(), emulator::Access::kRead);
  device.track("gate", gate.raw(), gate.bytes(), emulator::Access::kRead);
  RowPair squares{0, 0}, factors{0, 0};
  in_block(device, [&](std::uint32_t lane) {
    float sums[kColumns / 8][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    RowPair sum{0, 0};
    add_squares(sum, sums, {2, 0.5f});
    if (lane == 0) squares = sum;
    const RowPair scaled = norm.scaled<kWidth>({2, 0.5f}, {kWidth * 0.75f, kWidth * 3.75f});
    if (lane == 0) factors = scaled;
    norm.apply<half>(sums, scaled, kFirst, {1, 1}, {2, lane < 16 ? 0 : -1}, lane);
    for (int i = 0; i < kColumns / 2; ++i) {
      seen[lane * kColumns / 2 + static_cast<std::uint32_t>(i)] = sums[i / 4][i % 4];
    }
  });
  EXPECT_EQ(squares.x, 4.0f * (1 + 4 + 25 + 36));
  EXPECT_EQ(squares.x_8, 0.25f * (9 + 16 + 49 + 64));
  EXPECT_EQ(factors.x, 2.0f);
  EXPECT_EQ(factors.x_8, 0.25f);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kColumns / 2; ++i) {
      const int column = kFirst + i / 4 * 8 + lane % 4 * 2 + i % 2;
      const bool second = i % 4 >= 2, gated = !second || lane < 16;
      const double g = gate.value(1, second ? 0 : 2, 1, column);
      const double wanted = (i + 1) * (second ? 0.25 : 2.0) * gain.value(column) *
                            (gated ? g / (1 + std::exp(-g)) : 1);
      EXPECT_NEAR(seen[static_cast<std::size_t>(lane * kColumns / 2 + i)], wanted,
                  std::abs(wanted) * 0x1p-19)
          << lane << " " << i;
    }
  }
}

}  // namespace
}  // namespace mhla::cuda
