#include <gtest/gtest.h>

#include <cstdint>

#include "mhla/cuda/tile/group_sums.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/written_rows.hpp"

namespace mhla::cuda {
namespace {

using cuda_test::EverySecond;
using cuda_test::expect_rows;
using cuda_test::number;

/// Sums of a warp of the group: panels of 64 columns through a tile of 64.
template <class T, int kCount>
void expect_group_output(int count) {
  constexpr std::int64_t kWidth = kCount * 2, kStride = kWidth + 16;
  cuda_test::Array<T> out(21 * kStride);
  emulator::Device device(2);
  device.track("o", out.data(), out.bytes(), emulator::Access::kWrite);
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    float sums[kCount];
    for (std::uint32_t k = 0; k < kCount; ++k) {
      sums[k] = number(lane / 4 + k % 4 / 2 * 8, k / 4 * 8 + lane % 4 * 2 + k % 2);
    }
    write_sums<T>(sums, RowPair{0.5f, -3.0f}, WarpTile{ptx::shared_begin()}, out.raw(), 2 * kStride,
                  EverySecond{count}, lane);
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  expect_rows(out, kWidth, kStride, count);
}

TEST(GroupSums, RowsOfTokensAreWritten) {
  expect_group_output<bfloat16, 32>(16);
  expect_group_output<half, 64>(16);
  expect_group_output<bfloat16, 128>(9);
}

TEST(GroupSums, RestIsWhatRoundingLeaves) {
  float sums[32], before[32];
  for (int i = 0; i < 32; ++i) {
    sums[i] = before[i] = 1.0f + static_cast<float>(i) / 1000;
  }
  keep_rest_of_sums<bfloat16>(sums);
  for (int i = 0; i < 32; ++i) {
    const double x = static_cast<double>(before[i]);
    EXPECT_EQ(static_cast<double>(sums[i]), x - cuda_test::round_to<bfloat16>(x));
  }
}

}  // namespace
}  // namespace mhla::cuda
