// What the mixing of sm_90a has of its own: how items are made and shared out, the matrix that
// stays in shared memory, clusters.

#include "mhla/cuda/kernel/mixing_sm90.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mhla/cuda/kernel/mixing_loads.cuh"
#include "mhla/cuda/kernel/mixing_sm90_config.cuh"
#include "mhla/cuda/kernel/mixing_strip.cuh"
#include "support/cuda/mixing_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

/// How items are made, and that they give the right mixtures.
template <class T, int D, int E, Precision P>
void expect_items(const MixingCase& c, int row_tiles, bool stays, bool tall = false) {
  const auto p = Mixtures<MixingOnSm90, T, D, E, P>(c).params(true);
  EXPECT_EQ(1 << p.items.own_log2, row_tiles) << c.text();
  EXPECT_EQ(p.items.stays, stays) << c.text();
  EXPECT_EQ(p.items.tall, tall) << c.text();
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
        .items.own_log2;
  };
  EXPECT_EQ(log2(8), 0);
  EXPECT_EQ(log2(9), 1);
  EXPECT_EQ(log2(17), 2);
  EXPECT_EQ(log2(132), 2);
}

TEST(MixingSm90, KeepsTheMatrixOf128RowsWhereThatFits) {
  constexpr Precision kSingle = Precision::kSingle, kPair = Precision::kPair;
  expect_items<bfloat16, 64, 64, kSingle>({300, 300, 1, true, false, 1, 132}, 2, true);
  expect_items<bfloat16, 64, 64, kSingle>({260, 70, 1, false, true, 2, 12}, 2, true);
  expect_items<half, 64, 64, kPair>({200, 200, 1, true, false, 3, 8}, 2, true);
  expect_items<bfloat16, 64, 64, kSingle>({300, 200, 1, true, true, 4, 132}, 2, true);
  expect_items<bfloat16, 64, 64, kSingle>({257, 513, 1, false, false, 5, 24}, 2, false);
  expect_only_what_counts<MixingOnSm90, half, 64, 64, kPair>({190, 190, 1, true, false, 6, 13},
                                                             false);
}

TEST(MixingSm90, Has256RowsTogetherThatCountFewSummaries) {
  constexpr Precision kSingle = Precision::kSingle, kPair = Precision::kPair;
  expect_items<bfloat16, 64, 64, kSingle>({300, 300, 1, true, false, 1, 24}, 2, true, true);
  expect_items<half, 64, 64, kSingle>({400, 310, 2, true, true, 2, 24}, 2, true, true);
  expect_items<half, 64, 64, kSingle>({260, 70, 2, true, false, 3, 24}, 2, true, true);
  expect_items<bfloat16, 64, 64, kSingle>({300, 300, 1, false, false, 4, 24}, 2, true);
  expect_items<bfloat16, 64, 64, kPair>({300, 250, 1, true, false, 5, 24}, 2, true);
  expect_only_what_counts<MixingOnSm90, bfloat16, 64, 64, kSingle>(
      {290, 290, 1, true, false, 6, 13}, false);
}

/// Every item has its thread block, and none has much more than its part.
TEST(MixingSm90, SharesOutRowsByWhatTheirItemsMove) {
  using Kernel = MixingSm90<bfloat16, 64, 64, Precision::kSingle>;
  for (const int multiprocessors : {16, 100, 132, 300}) {
    SCOPED_TRACE(multiprocessors);
    MixingSm90Parameters p{};
    TensorBox boxes[6] = {};
    Kernel::prepare({{}, {}, {}, 512, 512, true}, 16, multiprocessors, p, boxes);
    EXPECT_TRUE(p.items.stays);
    const auto blocks = static_cast<int>(Kernel::grid(p, 16));
    EXPECT_TRUE(p.items.tall);
    const int columns = p.items.count / 4;
    std::vector<int> seen(4);
    int busiest = 0, all = 0;
    for (int block = 0; block < blocks; ++block) {
      const MixingShare share = Kernel::Config::share(p, block, blocks);
      const int own = 1 << share.own_log2;
      int items = 0;
      for (int i = share.first; i < columns * own / 2; i += share.step) ++items;
      EXPECT_EQ(own, share.row_tile == 0 ? 4 : 2);
      EXPECT_EQ(share.strips, share.row_tile + own);
      EXPECT_GE(share.slots, 2);
      seen[static_cast<std::size_t>(share.row_tile / 2)] += items;
      const int moved = items * (share.strips + own) * Kernel::Config::panels(share.own_log2);
      busiest = std::max(busiest, moved);
      all += moved;
    }
    EXPECT_EQ(seen, (std::vector<int>{2 * columns, 0, columns, columns}));
    EXPECT_LT(busiest, 1.25 * all / blocks + 40);
  }
}

TEST(MixingSm90, ReadsTheMatrixOnceForEachThreadBlock) {
  using Run = Mixtures<MixingOnSm90, bfloat16, 64, 64, Precision::kSingle>;
  for (const MixingCase& c : {MixingCase{260, 300, 2, false, false, 1, 24}, {64, 64, 3}}) {
    Run mixtures(c);
    const auto p = mixtures.params(false);
    const auto blocks = static_cast<int>(Run::Kernel::grid(p, c.pairs));
    int rows = 0;
    for (int block = 0; block < blocks; ++block) {
      const int first = 64 * Run::Kernel::Config::share(p, block, blocks).row_tile;
      rows += std::min(128, c.rows - first);
    }
    EXPECT_LT(blocks, p.items.count);
    EXPECT_EQ(mixtures.launch(false).bytes_read("m"), std::size_t{4} * rows * c.columns);
  }
}

TEST(MixingSm90, ReadsRoundedCoefficientsOnceForEachItem) {
  using Run = Mixtures<MixingOnSm90, bfloat16, 64, 64, Precision::kPair>;
  Run mixtures({200, 130, 1, false, false, 3});
  const auto p = mixtures.params(false);
  EXPECT_FALSE(p.items.stays);
  const emulator::Report r = mixtures.launch(false);
  EXPECT_EQ(r.bytes_read("m"), 0u);
  const std::size_t columns = std::size_t(Run::Kernel::Config::columns(1, 1));
  EXPECT_EQ(r.bytes_read("rounded"), columns * 200 * 130 * 2);
  EXPECT_EQ(r.bytes_read("rounded_low"), columns * 200 * 130 * 2);
}

/// How many thread blocks are a cluster, and that their mixtures are right.
template <class T, Precision P>
void expect_cluster(const MixingCase& c, unsigned blocks) {
  using Run = Mixtures<MixingOnSm90, T, 64, 64, P>;
  EXPECT_EQ(Run::Kernel::cluster(Run(c).params(true)), blocks) << c.text();
  expect_right_mixtures<MixingOnSm90, T, 64, 64, P>(c);
}

TEST(MixingSm90, LoadsSummariesTogetherInClusters) {
  constexpr Precision kSingle = Precision::kSingle, kPair = Precision::kPair;
  expect_cluster<bfloat16, kSingle>({257, 70, 1, false, false, 1, 4}, 4);  // one block has no rows
  expect_cluster<half, kSingle>({300, 300, 1, true, false, 2, 5}, 4);
  expect_cluster<half, kSingle>({800, 70, 1, true, true, 3, 9}, 4);
  expect_cluster<bfloat16, kPair>({257, 257, 1, true, false, 4, 8}, 4);
  expect_cluster<half, kSingle>({140, 700, 1, false, true, 5, 3}, 2);
  expect_cluster<half, kPair>({200, 200, 1, true, false, 6, 2}, 2);
  expect_cluster<bfloat16, kSingle>({100, 700, 1, false, false, 7, 4}, 1);
  expect_only_what_counts<MixingOnSm90, half, 64, 64, kPair>({260, 200, 1, true, false, 8, 4},
                                                             false);
}

TEST(MixingSm90, GivesTheSameBitsInClusters) {
  using Run = Mixtures<MixingOnSm90, bfloat16, 64, 64, Precision::kSingle>;
  Run alone({260, 260, 1, true, false, 1, 1}), together({260, 260, 1, true, false, 1, 4});
  together.c.seed = 4;  // of the schedule
  EXPECT_EQ(alone.launch(false).count("cluster barriers"), 0u);
  EXPECT_NE(together.launch(false).count("cluster barriers"), 0u);
  for (std::int64_t i = 0; i < alone.high.size(); ++i) {
    ASSERT_EQ(alone.high[i].bits, together.high[i].bits) << i;
  }
}

TEST(MixingSm90, LeavesOutRowsThatAreNotThere) {
  using Run = Mixtures<MixingOnSm90, bfloat16, 64, 64, Precision::kSingle>;
  const auto products = [](int rows) {
    return Run({rows, rows, 1, true}).launch(false).count("mma");
  };
  // Parts of 16 x 16 on or left of the diagonal: 10 of 64 rows, 3 of 32.
  EXPECT_EQ(products(64) * 3, products(32) * 10);
}

TEST(MixingSm90, MixesManyEarlierSummaries) {
  expect_items<bfloat16, 64, 64, Precision::kSingle>({300, 300, 1, true, false, 1}, 2, false);
  expect_items<half, 64, 64, Precision::kPair>({200, 200, 2, true, false, 2, 3}, 2, false);
  expect_items<bfloat16, 64, 64, Precision::kSingle>({200, 200, 1, true, false, 3, 9}, 4, true);
  expect_only_what_counts<MixingOnSm90, half, 64, 64, Precision::kPair>({190, 190, 1, true}, false);
}

}  // namespace
}  // namespace cuda_test
