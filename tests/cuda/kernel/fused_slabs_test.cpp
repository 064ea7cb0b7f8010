// Tests of the fused form of slabs of columns: outputs against the definition in double, bytes
// moved, and what it refuses. Bits are those of the kernel that has all columns.

#include "mhla/cuda/kernel/fused_slabs.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "mhla/cuda/kernel/fused_slabs_config.cuh"
#include "mhla/cuda/kernel/fused_sm90.cuh"
#include "support/cuda/fused_run.hpp"

namespace cuda_test {
namespace {

struct OfSlabs {
  template <class T, int D, int>
  using Kernel = FusedSlabs<T, D, D>;
};
struct OfAllColumns {
  template <class T, int D, int kRegions>
  using Kernel = FusedSm90<T, D, D, kRegions>;
};

template <class T>
struct SlabsRun : FusedRun<OfSlabs, T, 64, 64> {
  using FusedRun<OfSlabs, T, 64, 64>::FusedRun;

  /// Expects that each slab read all queries and keys, and its columns of the values once. The only
  /// conflicts are those of reading values, whose rows have 32 bytes: one for every 8 rows and 8
  /// columns, in each of four warps.
  void expect_traffic() const {
    using Config = FusedSlabsConfig<64, 64>;
    EXPECT_EQ(this->report.bytes_read("q"), Config::kSlabs * this->q.row_bytes());
    EXPECT_EQ(this->report.bytes_read("k"), Config::kSlabs * this->k.row_bytes());
    EXPECT_EQ(this->report.bytes_read("v"), this->v.row_bytes());
    EXPECT_EQ(this->report.bytes_written("o"), this->o.row_bytes());
    const TokenBlocks& keys = this->c.key_blocks;
    const auto boxes = static_cast<std::uint64_t>(keys.blocks() * keys.slots() / 16);
    EXPECT_EQ(this->report.bank_conflicts,
              16 * boxes * static_cast<std::uint64_t>(Config::kSlabs * this->c.pairs()));
  }
};

TEST(FusedSlabs, GivesOutputsOfUpToSixtyFourBlocks) {
  const auto of = fused_case;
  expect_right<SlabsRun<bfloat16>>(of(sequence(64 * 16, 16), kRelu, kKeySum, 1, 1, 1, 0));
  expect_right<SlabsRun<half>>(of(sequence(1500, 32), kElu, kKeySum, 2, 1, 1, 1));
  expect_right<SlabsRun<bfloat16>>(of(sequence(17 * 16 - 5, 16), kElu, kKeySum, 3, 2, 2, 2));
  expect_right<SlabsRun<half>>(of(sequence(700, 48), kIdentity, kNone, 4, 1, 2, 0));
  expect_right<SlabsRun<half>>(of(sequence(16, 16), kRelu, kKeySum, 5, 1, 1, 0));
  expect_right<SlabsRun<bfloat16>>(of(sequence(900, 192), kElu, kKeySum, 6, 1, 1, 1));  // 3 boxes
}

TEST(FusedSlabs, BoxesOfAGridMayReachBeyondIt) {
  const auto of = fused_case;
  expect_right<SlabsRun<bfloat16>>(of({1, 26, 44, 1, 4, 8}, kElu, kKeySum, 1, 1, 2, 1));
  expect_right<SlabsRun<half>>(of({3, 5, 18, 2, 2, 4}, kElu, kKeySum, 2, 2, 1, 2));
}

TEST(FusedSlabs, QueriesAndKeysMayDifferInNumber) {
  Case c{.blocks = sequence(40 * 16 - 3, 16), .key_blocks = sequence(300, 32), .heads = 2};
  expect_right<SlabsRun<bfloat16>>(c);
  std::swap(c.blocks, c.key_blocks);
  expect_right<SlabsRun<half>>(c);
}

template <class T>
void expect_bits_of_all_columns(const Case& c) {
  FusedRun<OfAllColumns, T, 64, 16> all(c);
  SlabsRun<T> slabs(c);
  ASSERT_TRUE(all.launch(1));
  ASSERT_TRUE(slabs.launch(2));
  EXPECT_TRUE(slabs.wrote_as(all)) << text(c);
}

TEST(FusedSlabs, WritesTheBitsOfTheKernelWithAllColumns) {
  const auto of = fused_case;
  expect_bits_of_all_columns<bfloat16>(of({1, 30, 15, 1, 8, 4}, kElu, kKeySum, 1, 1, 2, 0));
  expect_bits_of_all_columns<half>(of(sequence(500, 32), kRelu, kKeySum, 2, 2, 1, 1));
  expect_bits_of_all_columns<half>(of(sequence(250, 64), kIdentity, kNone, 3, 1, 1, 2));
}

TEST(FusedSlabs, SchedulesChangeNoBit) {
  expect_same_in_any_order<SlabsRun<half>>(fused_case(sequence(300, 16), kElu, kKeySum, 1, 1, 2));
}

TEST(FusedSlabs, WhatIsNanSpoilsNothingElse) {
  expect_nan_query_spoils_no_other<SlabsRun<bfloat16>>(
      fused_case(sequence(300, 16), kIdentity, kNone, 1));
  expect_nan_head_spoils_no_other<SlabsRun<half>>(
      fused_case(sequence(300, 16), kRelu, kKeySum, 2, 1, 3));
}

TEST(FusedSlabs, RefusesMoreBlocksAndOtherBoxes) {
  const auto can = [](const TokenBlocks& queries, const TokenBlocks& keys) {
    FusedSm90Parameters p{};
    TensorBox boxes[3] = {};
    SlabsRun<half> run({.blocks = queries, .key_blocks = keys});
    return FusedSlabs<half, 64, 64>::prepare(run.stage(), 1, 132, p, boxes);
  };
  const TokenBlocks most = sequence(64 * 16, 16);
  EXPECT_TRUE(can(most, most));
  EXPECT_FALSE(can(most, sequence(64 * 16 + 1, 16)));
  EXPECT_FALSE(can(sequence(64 * 16 + 1, 16), most));
  EXPECT_FALSE(can(most, sequence(64 * 24, 24)));
  EXPECT_FALSE(can(most, sequence(10 * 112, 112)));  // boxes of 56 tokens
  EXPECT_FALSE(can(sequence(64 * 8, 8), most));
  EXPECT_TRUE(can({1, 16, 16, 1, 8, 4}, most));
}

}  // namespace
}  // namespace cuda_test
