#include "mhla/cuda/kernel/mixture_slot.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "emulator/async_box.hpp"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

constexpr int kBlocks = 3, kPairs = 2;

/// Expects that a loaded slot has the mixture as a tile, then its low part, and the key sum. Tests
/// of read_out_sm90 check the products.
template <int D, int E, Precision P>
void expect_loaded(bool key_sum) {
  using Slot = MixtureSlot<D, E, P>;
  static_assert(Slot::kPanelBytes == SharedTile<D, box_columns(E)>::kBytes);
  constexpr bool kPair = P == Precision::kPair;
  cuda_test::Array<half> high(kPairs * kBlocks * D * E), low(high.size());
  cuda_test::Array<float> sums(kPairs * kBlocks * D);
  for (std::int64_t i = 0; i < high.size(); ++i) {
    high[i].bits = static_cast<std::uint16_t>(i * 7);
    low[i].bits = static_cast<std::uint16_t>(i * 5 + 1);
  }
  for (std::int64_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<float>(i);
  TensorBox boxes[3];
  Slot::boxes({high.raw(), low.raw(), sums.data()},
              key_sum ? Denominator::kKeySum : Denominator::kNone, kBlocks, kPairs, boxes);
  EXPECT_EQ(boxes[1].base != nullptr, kPair);
  EXPECT_EQ(boxes[2].base != nullptr, key_sum);
  TensorMap maps[3] = {};
  for (int i = 0; i < 3; ++i) {
    if (boxes[i].base != nullptr) maps[i] = emulator::tensor_map(boxes[i]);
  }
  for (std::int32_t pair = 0; pair < kPairs; ++pair) {
    for (std::int32_t block = 0; block < kBlocks; ++block) {
      std::vector<std::uint32_t> seen(D * E / 2), seen_low(D * E / 2);
      std::vector<float> seen_sums(D);
      emulator::Device device;
      device.track("high", high.data(), high.bytes(), emulator::Access::kRead);
      device.track("low", low.data(), low.bytes(), emulator::Access::kRead);
      device.track("sums", sums.data(), sums.bytes(), emulator::Access::kRead);
      cuda_test::in_block<32, Slot::kBytes + 1024>(device, [&](std::uint32_t lane) {
        const std::uint32_t barrier = ptx::shared_begin();
        const Slot slot{barrier + 1024};
        if (lane == 0) {
          ptx::mbarrier_init(barrier, 1);
          ptx::fence_mbarrier_init();
        }
        ptx::bar_sync();
        if (lane == 0) {
          ptx::mbarrier_arrive_expect_tx(barrier, Slot::loaded_bytes(key_sum));
          slot.load(maps, pair, block, key_sum, barrier);
        }
        ptx::mbarrier_wait(barrier, 0);
        const SharedTile<D, E> tile{slot.begin}, tile_low{slot.begin + Slot::kPartBytes};
        for (std::uint32_t i = lane; i < D * E / 2; i += 32) {
          const std::uint32_t row = i / (E / 2), column = i % (E / 2) * 2;
          const std::uint32_t in_piece = column % 8 * 2;
          seen[i] = ptx::ld_shared(tile.piece(row, column / 8) + in_piece);
          if (kPair) seen_low[i] = ptx::ld_shared(tile_low.piece(row, column / 8) + in_piece);
        }
        for (std::uint32_t i = lane; key_sum && i < D; i += 32) {
          seen_sums[i] = ptx::ld_shared_f32(slot.key_sum().at(i));
        }
      });
      const std::int64_t summary = pair * kBlocks + block;
      for (std::int64_t i = 0; i < D * E / 2; ++i) {
        const std::int64_t first = summary * D * E + 2 * i;
        const auto words = [&](const cuda_test::Array<half>& part) {
          return std::uint32_t{part[first].bits} | std::uint32_t{part[first + 1].bits} << 16;
        };
        ASSERT_EQ(seen[static_cast<std::size_t>(i)], words(high));
        ASSERT_TRUE(!kPair || seen_low[static_cast<std::size_t>(i)] == words(low));
      }
      for (std::int64_t i = 0; key_sum && i < D; ++i) {
        ASSERT_EQ(seen_sums[static_cast<std::size_t>(i)], sums[summary * D + i]);
      }
    }
  }
}

TEST(MixtureSlot, HoldsTheMixtureOfABlock) {
  expect_loaded<64, 64, Precision::kSingle>(true);
  expect_loaded<64, 64, Precision::kPair>(false);
  expect_loaded<72, 72, Precision::kPair>(true);
  expect_loaded<128, 128, Precision::kPair>(true);
  expect_loaded<128, 256, Precision::kSingle>(false);
}

}  // namespace
}  // namespace mhla::cuda
