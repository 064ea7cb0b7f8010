#include <gtest/gtest.h>

#include <cstdint>

#include "mhla/cuda/tile/row_output.cuh"
#include "mhla/cuda/tile/shared_tile.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/written_rows.hpp"

namespace mhla::cuda {
namespace {

using cuda_test::EverySecond;
using cuda_test::expect_rows;
using cuda_test::number;

template <class T, int kTiles>
void expect_output(int count) {
  constexpr std::int64_t kWidth = 8 * kTiles, kStride = kWidth + 8;
  cuda_test::Array<T> out(21 * kStride);
  emulator::Device device(2);
  device.track("o", out.data(), out.bytes(), emulator::Access::kWrite);
  const auto report = cuda_test::in_block(device, [&](std::uint32_t lane) {
    float sums[kTiles][4];
    for (std::uint32_t j = 0; j < kTiles; ++j) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        sums[j][i] = number(lane / 4 + i / 2 * 8, 8 * j + lane % 4 * 2 + i % 2);
      }
    }
    write_sums<T>(sums, RowPair{0.5f, -3.0f}, SharedTile<16, 8 * kTiles>{ptx::shared_begin()},
                  out.raw(), 2 * kStride, EverySecond{count}, lane);
  });
  EXPECT_EQ(report.bank_conflicts, 0u);
  expect_rows(out, kWidth, kStride, count);
}

TEST(RowOutput, RowsOfTokensAreWritten) {
  expect_output<bfloat16, 8>(16);
  expect_output<half, 9>(16);
  expect_output<bfloat16, 16>(11);
  expect_output<half, 32>(0);
}

}  // namespace
}  // namespace mhla::cuda
