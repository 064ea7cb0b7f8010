// Tests specific to the mixing of sm_90a: the order and distribution of items, and the matrix that
// stays in shared memory.

#include "mhla/cuda/kernel/mixing_sm90.cuh"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "mhla/cuda/kernel/mixing_loads.cuh"
#include "mhla/cuda/kernel/mixing_sm90_config.cuh"
#include "mhla/cuda/kernel/mixing_strip.cuh"
#include "support/cuda/mixing_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

/// Checks the shape of items, whether the matrix stays in shared memory, and the mixtures.
template <class T, int D, int E, Precision P>
void expect_items(const MixingCase& c, int row_tiles, bool stays) {
  const auto p = Mixtures<MixingOnSm90, T, D, E, P>(c).params(true);
  EXPECT_EQ(1 << p.items.tiles_log2, row_tiles) << c.text();
  EXPECT_EQ(p.items.stays, stays) << c.text();
  expect_right_mixtures<MixingOnSm90, T, D, E, P>(c);
}

TEST(MixingSm90, KeepsTheMatrixInSharedMemoryWhereItFits) {
  constexpr Precision kSingle = Precision::kSingle, kPair = Precision::kPair;
  expect_items<bfloat16, 64, 64, kSingle>({64, 64, 1, false}, 1, true);
  expect_items<bfloat16, 64, 64, kSingle>({100, 80, 1, false, true, 1}, 2, true);
  expect_items<bfloat16, 64, 64, kSingle>({129, 200, 1, false, false, 2}, 4, true);
  expect_items<bfloat16, 64, 64, kPair>({150, 150, 1, false, false, 3}, 4, true);
  expect_items<half, 64, 64, kPair>({200, 200, 1, false, true, 4}, 2, false);
  expect_items<bfloat16, 64, 64, kSingle>({260, 70, 1, false, false, 5}, 2, false);
  expect_items<half, 64, 64, kSingle>({3, 700, 1, false, false, 6}, 2, false);
}

TEST(MixingSm90, LeavesNoMultiprocessorIdleForWiderItems) {
  const auto log2 = [](int multiprocessors) {
    return Mixtures<MixingOnSm90, bfloat16, 64, 64, Precision::kSingle>(
               {4, 4, 1, false, false, 0, multiprocessors})
        .params(true)
        .items.tiles_log2;
  };
  EXPECT_EQ(log2(8), 0);
  EXPECT_EQ(log2(9), 1);
  EXPECT_EQ(log2(17), 2);
  EXPECT_EQ(log2(132), 2);
}

TEST(MixingSm90, GivesEachUnitToOneThreadBlock) {
  using Kernel = MixingSm90<bfloat16, 64, 64, Precision::kSingle>;
  using Config = Kernel::Config;
  for (const int multiprocessors : {1, 4, 7, 100, 132}) {
    SCOPED_TRACE(multiprocessors);
    MixingSm90Parameters p{};
    TensorBox boxes[6] = {};
    Kernel::prepare({{}, {}, {}, 1024, 1024, true}, 2, multiprocessors, p, boxes);
    EXPECT_FALSE(p.items.stays);
    const auto blocks = static_cast<int>(Kernel::grid(p, 2));
    std::set<std::pair<int, int>> seen;  // row tile and panel
    for (int block = 0; block < blocks; ++block) {
      Config::for_items(p, Config::share(p, block, blocks), [&](const MixingItem& item) {
        for (int i = 0; i < Config::kItemUnits; ++i) {
          const MixingUnit unit = Config::unit(p, item, i % 2, i / 2);
          EXPECT_LE(unit.whole, item.strips);
          EXPECT_TRUE(
              seen.insert({unit.row_tile, item.panel + static_cast<int>(unit.panel)}).second);
        }
      });
    }
    EXPECT_EQ(seen.size(), 16u * 64u);
  }
}

TEST(MixingSm90, ReadsTheMatrixOnceForEachThreadBlock) {
  using Run = Mixtures<MixingOnSm90, bfloat16, 64, 64, Precision::kSingle>;
  for (const MixingCase& c : {MixingCase{200, 300, 2, false, false, 1, 8}, {64, 64, 3}}) {
    Run mixtures(c);
    const auto p = mixtures.params(false);
    const auto blocks = static_cast<int>(Run::Kernel::grid(p, c.pairs));
    EXPECT_LT(blocks, p.items.count);
    EXPECT_EQ(mixtures.launch(false).bytes_read("m"), std::size_t{4} * blocks * c.rows * c.columns);
  }
}

TEST(MixingSm90, ReadsRoundedCoefficientsOnceForTheColumnsOfAnItem) {
  using Run = Mixtures<MixingOnSm90, bfloat16, 64, 64, Precision::kPair>;
  Run mixtures({200, 130, 1, false, false, 3, 2});
  const auto p = mixtures.params(false);
  EXPECT_FALSE(p.items.stays);
  const emulator::Report r = mixtures.launch(false);
  EXPECT_EQ(r.bytes_read("m"), 0u);
  const std::size_t columns = std::size_t(Run::Kernel::Config::columns(p.items, 1));
  EXPECT_EQ(r.bytes_read("rounded"), columns * 200 * 130 * 2);
  EXPECT_EQ(r.bytes_read("rounded_low"), columns * 200 * 130 * 2);
}

TEST(MixingSm90, GivesTheSameBitsWithMoreMultiprocessors) {
  using Run = Mixtures<MixingOnSm90, bfloat16, 64, 64, Precision::kSingle>;
  Run alone({260, 260, 1, true, false, 1, 1}), together({260, 260, 1, true, false, 1, 8});
  together.c.seed = 4;  // seed of the schedule
  alone.launch(false);
  together.launch(false);
  for (std::int64_t i = 0; i < alone.high.size(); ++i) {
    ASSERT_EQ(alone.high[i].bits, together.high[i].bits) << i;
  }
}

TEST(MixingSm90, LeavesOutRowsThatAreNotThere) {
  using Run = Mixtures<MixingOnSm90, bfloat16, 64, 64, Precision::kSingle>;
  const auto products = [](int rows) {
    return Run({rows, rows, 1, true}).launch(false).count("mma");
  };
  // 64 rows have 10 parts of 16 x 16 on or left of the diagonal, 32 rows have 3.
  EXPECT_EQ(products(64) * 3, products(32) * 10);
}

TEST(MixingSm90, TakesAnyNumberOfRowTiles) {
  constexpr Precision kSingle = Precision::kSingle, kPair = Precision::kPair;
  expect_items<half, 64, 64, kSingle>({257, 130, 1, true, false, 2, 17}, 2, false);
  expect_items<bfloat16, 64, 64, kPair>({257, 70, 1, true, true, 4, 9}, 2, false);
  expect_items<half, 64, 64, kSingle>({500, 20, 1, true, true, 3, 5}, 2, false);
  expect_items<half, 64, 64, kPair>({70, 257, 1, false, true, 5, 3}, 2, false);
}

TEST(MixingSm90, MixesManyEarlierSummaries) {
  expect_items<bfloat16, 64, 64, Precision::kSingle>({300, 300, 1, true, false, 1}, 2, false);
  expect_items<half, 64, 64, Precision::kPair>({200, 200, 2, true, false, 2, 3}, 2, false);
  expect_items<bfloat16, 64, 64, Precision::kSingle>({200, 200, 1, true, false, 3, 9}, 4, true);
  expect_only_what_counts<MixingOnSm90, half, 64, 64, Precision::kPair>({190, 190, 1, true}, false);
}

}  // namespace
}  // namespace cuda_test
