#include <gtest/gtest.h>

#include <cstdint>

#include "mhla/cuda/tile/column_sums.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

/// Sum i of a thread; sums of such in another order have other bits.
float of_thread(std::uint32_t thread, std::uint32_t i) {
  return 1 / static_cast<float>(1 + 8 * thread + i);
}

/// With `kWidth` columns, threads from kRows kPieces on hold no sum.
template <int kWidth>
void expect_sums_in_the_order_of_rows() {
  constexpr int kThreads = 128;
  using Sums = ColumnSums<kThreads, kWidth>;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    cuda_test::Array<float> to(kWidth);
    emulator::Device device(seed);
    device.track("to", to.data(), to.bytes(), emulator::Access::kWrite);
    const auto report =
        cuda_test::in_block<kThreads, Sums::kSharedBytes>(device, [&](std::uint32_t thread) {
          float sums[8];
          for (std::uint32_t i = 0; i < 8; ++i) sums[i] = of_thread(thread, i);
          Sums::write(sums, to.data());
        });
    EXPECT_EQ(report.bytes_written("to"), 4u * kWidth);
    for (std::uint32_t column = 0; column < kWidth; ++column) {
      float wanted = 0;
      for (std::uint32_t row = 0; row < Sums::kRows; ++row) {
        wanted += of_thread(row * Sums::kPieces + column / 8, column % 8);
      }
      EXPECT_EQ(to[column], wanted) << "column " << column << " of " << kWidth;
    }
  }
}

TEST(ColumnSums, AreAddedInTheOrderOfRows) {
  expect_sums_in_the_order_of_rows<64>();
  expect_sums_in_the_order_of_rows<72>();
  expect_sums_in_the_order_of_rows<128>();
  expect_sums_in_the_order_of_rows<256>();
}

}  // namespace
}  // namespace mhla::cuda
