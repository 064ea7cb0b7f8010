// Tests of floats as factors, in the emulator: copies, their parts, and products of three terms.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "mhla/cuda/tile/factors.cuh"
#include "support/cuda/exact_phi.hpp"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

namespace factors_tests {

constexpr std::uint32_t kRows = 16, kColumns = 72;
using Tile = PartsTile<kRows, kColumns>;

/// Rows of floats of many sizes in device memory, row 3 left out.
struct Rows {
  cuda_test::Array<float> numbers{kRows * kColumns};

  Rows() {
    cuda_test::Random random(1);
    for (int i = 0; i < static_cast<int>(kRows * kColumns); ++i) {
      numbers[i] = static_cast<float>(std::ldexp(random.uniform(-1, 1), i % 40 - 20));
    }
  }
  double value(std::uint32_t row, std::uint32_t column) const {
    return row == 3 ? 0 : numbers.value(row * kColumns + column);
  }
  /// Copies the rows to the beginning of shared memory and splits phi of them.
  Tile split(const FeatureMap& map, std::uint32_t thread) const {
    const Tile tile{ptx::shared_begin()};
    const auto token = [](std::int32_t row) { return row == 3 ? -1 : row; };
    copy_rows<32>(tile, numbers.raw(), 4 * kColumns, token, thread);
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<0>();
    split_copied<32>(map, tile, thread);
    ptx::bar_sync();
    return tile;
  }
};

/// A number of a part in shared memory.
template <class Part>
double number(Part part, std::uint32_t row, std::uint32_t column) {
  const std::uint32_t pair = ptx::ld_shared(part.piece(row, column / 8) + column % 8 / 2 * 4);
  return static_cast<double>(column % 2 == 0 ? ptx::low<bfloat16>(pair)
                                             : ptx::high<bfloat16>(pair));
}

TEST(Factors, PartsAddUpToPhiOfTheFloat) {
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(0.3f), FeatureMap::elu_plus_one()}) {
    Rows rows;
    std::vector<double> sums(kRows * kColumns), highs = sums;
    emulator::Device device(1);
    device.track("x", rows.numbers.raw(), rows.numbers.bytes(), emulator::Access::kRead);
    cuda_test::in_block(device, [&](std::uint32_t thread) {
      const Tile tile = rows.split(map, thread);
      for (std::uint32_t i = thread; i < kRows * kColumns; i += 32) {
        highs[i] = number(tile.high(), i / kColumns, i % kColumns);
        sums[i] = highs[i] + number(tile.low(), i / kColumns, i % kColumns);
      }
    });
    for (std::uint32_t i = 0; i < kRows * kColumns; ++i) {
      const double x = cuda_test::exact_phi<float>(map, rows.value(i / kColumns, i % kColumns));
      // e^x may underflow.
      const double relative = map.exponential ? 0x1p-16 : 0x1p-17;
      ASSERT_LE(std::abs(sums[i] - x), relative * std::abs(x) + 0x1p-126) << i;
      ASSERT_LE(std::abs(highs[i] - x), 0x1p-7 * std::abs(x) + 0x1p-126) << i;
    }
  }
}

TEST(Factors, CopiesAndSplitsHaveNoBankConflicts) {
  Rows rows;
  emulator::Device device(1);
  device.track("x", rows.numbers.raw(), rows.numbers.bytes(), emulator::Access::kRead);
  const auto report = cuda_test::in_block(
      device, [&](std::uint32_t thread) { rows.split(FeatureMap::identity(), thread); });
  EXPECT_EQ(report.bank_conflicts, 0u);
}

TEST(Factors, ThreeProductsAreWithinTheBound) {
  Rows rows;
  double products[kRows][kRows];
  emulator::Device device(1);
  device.track("x", rows.numbers.raw(), rows.numbers.bytes(), emulator::Access::kRead);
  cuda_test::in_block(device, [&](std::uint32_t lane) {
    const Tile tile = rows.split(FeatureMap::identity(), lane);
    float sums[2][4] = {};
    multiply_transposed(sums, load_rows(tile, 0, lane), tile, 0, lane);
    for (std::uint32_t j = 0; j < 2; ++j) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        products[lane / 4 + i / 2 * 8][8 * j + lane % 4 * 2 + i % 2] =
            static_cast<double>(sums[j][i]);
      }
    }
  });
  for (std::uint32_t r = 0; r < kRows; ++r) {
    for (std::uint32_t s = 0; s < kRows; ++s) {
      double exact = 0, size = 0;
      for (std::uint32_t c = 0; c < kColumns; ++c) {
        exact += rows.value(r, c) * rows.value(s, c);
        size += std::abs(rows.value(r, c) * rows.value(s, c));
      }
      ASSERT_LE(std::abs(products[r][s] - exact),
                (0x1.01p-15 + cuda_test::gamma(3 * kColumns)) * size);
    }
  }
}

}  // namespace factors_tests

}  // namespace
}  // namespace mhla::cuda
