// The whole operator of a pair in the four blocks of a cluster: outputs against the definition in
// double, what it moves, what it must not touch.

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "mhla/cuda/kernel/cluster_mixing_sm90.cuh"
#include "mhla/cuda/kernel/fused_sm90.cuh"
#include "support/cuda/fused_run.hpp"

namespace cuda_test {
namespace {

struct FusedOfCluster {
  static constexpr int kCluster = 4;
  template <class T>
  static constexpr double kRounding = kRoundoff<T>;
  template <class T, int D, int kRegions>
  using Kernel = FusedSm90<T, D, D, kRegions, kCluster>;
};
template <class T>
using ClusterRun = FusedRun<FusedOfCluster, T, 64, 16>;

template <class T>
void expect_right_cluster(const Case& c) {
  expect_right<ClusterRun<T>>(c);
}

TEST(FusedCluster, SixtyFourBlocksFillTheRegions) {
  expect_right_cluster<bfloat16>(fused_case(sequence(64 * 16, 16), kRelu, kKeySum, 1, 1, 1, 0));
  expect_right_cluster<half>(fused_case(sequence(64 * 3 - 2, 3), kElu, kKeySum, 2, 1, 2, 1));
}

TEST(FusedCluster, AnyNumberOfBlocksIsShared) {
  const auto of = fused_case;
  expect_right_cluster<half>(of(sequence(17 * 18, 18), kElu, kKeySum, 1, 1, 1, 2));
  expect_right_cluster<bfloat16>(of(sequence(33 * 8 - 5, 8), kRelu, kKeySum, 2, 1, 1, 0));
  expect_right_cluster<bfloat16>(of(sequence(49 * 5, 5), kIdentity, kNone, 3, 2, 1, 1));
  expect_right_cluster<half>(of(sequence(63 * 4, 4), kIdentity, kNone, 4, 1, 1, 0));
  expect_right_cluster<half>(of(sequence(1, 1), kElu, kKeySum, 5, 1, 1, 0));  // three have none
  expect_right_cluster<bfloat16>(of(sequence(300, 50), kElu, kKeySum, 6, 1, 1, 0));
  expect_right_cluster<bfloat16>(of(sequence(500, 160), kRelu, kKeySum, 7, 1, 1, 0));
}

TEST(FusedCluster, BoxesOfAGridMayReachBeyondIt) {
  const auto of = fused_case;
  expect_right_cluster<bfloat16>(of({1, 27, 26, 1, 7, 7}, kElu, kKeySum, 1, 1, 1, 0));
  expect_right_cluster<half>(of({3, 10, 14, 2, 3, 4}, kRelu, kKeySum, 2, 1, 2, 1));
}

TEST(FusedCluster, QueriesAndKeysMayDifferInNumber) {
  Case c{.blocks = sequence(150, 4), .key_blocks = sequence(100, 16)};
  expect_right_cluster<bfloat16>(c);
  std::swap(c.blocks, c.key_blocks);
  c.blocks = sequence(100, 33);
  c.key_blocks = sequence(190, 34);
  expect_right_cluster<half>(c);
}

TEST(FusedCluster, SchedulesChangeNoBit) {
  Case c = fused_case(sequence(19 * 4, 4), kElu, kKeySum, 1, 1, 3);
  c.multiprocessors = 4;
  ClusterRun<half> first(c);
  ASSERT_TRUE(first.launch(0));
  for (std::uint64_t schedule = 1; schedule < 6; ++schedule) {
    c.multiprocessors = schedule % 2 == 0 ? 4 : 8;
    ClusterRun<half> other(c);
    ASSERT_TRUE(other.launch(schedule));
    EXPECT_TRUE(other.wrote_as(first)) << schedule;
  }
}

// Zeros where there are no summaries, and slots behind the last tokens, come from heads before.
TEST(FusedCluster, AHeadThatIsNanSpoilsNoOther) {
  Case c = fused_case(sequence(21 * 7 - 3, 7), kRelu, kKeySum, 1, 1, 3);
  c.multiprocessors = 4;
  expect_nan_head_spoils_no_other<ClusterRun<half>>(c);
}

TEST(FusedCluster, AQueryThatIsNanSpoilsNoOther) {
  expect_nan_query_spoils_no_other<ClusterRun<bfloat16>>(
      fused_case(sequence(96, 4), kIdentity, kNone, 1));
}

}  // namespace
}  // namespace cuda_test
