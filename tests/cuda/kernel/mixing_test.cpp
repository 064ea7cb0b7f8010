// Mixtures of summaries against the definition in double, what the kernel moves, what it must not
// touch.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "mhla/cuda/kernel/key_sum_mixing.cuh"
#include "mhla/cuda/kernel/key_sum_team.cuh"
#include "mhla/cuda/kernel/mixing_loads.cuh"
#include "mhla/cuda/kernel/mixing_sm80.cuh"
#include "mhla/cuda/kernel/mixing_sm80_config.cuh"
#include "mhla/cuda/kernel/mixing_sm90.cuh"
#include "mhla/cuda/kernel/mixing_sm90_config.cuh"
#include "mhla/cuda/kernel/mixing_strip.cuh"
#include "mhla/cuda/kernel/rounded_mixing.cuh"
#include "support/cuda/mixing_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

template <class Kernels>
class Mixing : public testing::Test {
 protected:
  static constexpr bool kSm80 = Kernels::kArch == Arch::kSm80;
  static constexpr int kNarrow = kSm80 ? 72 : 64;  // sm_90a does not have (72, 72)
  template <class T, int D, int E, Precision P = Precision::kSingle>
  static void expect_right(const MixingCase& c) {
    expect_right_mixtures<Kernels, T, D, E, P>(c);
  }
  template <class T, int D, int E, Precision P = Precision::kSingle>
  using Run = Mixtures<Kernels, T, D, E, P>;

  /// All pairs of width, type, precision, `earlier` and `few_bits`, not all combinations.
  template <int D, int E>
  static void expect_right_for_types(bool odd) {
    expect_right<bfloat16, D, E, Precision::kSingle>({3, 3, 2, odd, odd, 1});
    expect_right<bfloat16, D, E, Precision::kPair>({9, 9, 1, !odd, odd, 2});
    expect_right<half, D, E, Precision::kSingle>({9, 9, 1, odd, !odd, 3});
    expect_right<half, D, E, Precision::kPair>({3, 3, 1, !odd, !odd, 4});
  }
};

using BothMixings = testing::Types<MixingOnSm80, MixingOnSm90>;
TYPED_TEST_SUITE(Mixing, BothMixings);

TYPED_TEST(Mixing, TakesAnyNumberOfSummaries) {
  std::uint64_t seed = 0;
  for (const int blocks : {1, 2, 15, 16, 17, 31, 33, 65, 70}) {
    for (const bool earlier : {false, true}) {
      this->template expect_right<bfloat16, 64, 64>(
          {blocks, blocks, 1, earlier, seed % 4 < 2, seed});
      ++seed;
    }
  }
  this->template expect_right<bfloat16, 64, 64>({130, 150, 1, true, false, 1});
}

TYPED_TEST(Mixing, TakesRectangles) {
  std::uint64_t seed = 0;
  constexpr int kD = TestFixture::kNarrow;
  for (const bool earlier : {false, true}) {
    this->template expect_right<half, 64, 64>({3, 40, 2, earlier, false, seed++});
    this->template expect_right<half, 64, 64>({40, 3, 2, earlier, true, seed++});
    this->template expect_right<half, kD, kD>({66, 34, 1, earlier, true, seed++});
  }
}

TYPED_TEST(Mixing, KnowsAllWidthsTypesAndPrecisions) {
  this->template expect_right_for_types<64, 64>(false);
  if constexpr (TestFixture::kSm80) this->template expect_right_for_types<72, 72>(true);
  this->template expect_right_for_types<128, 128>(false);
  this->template expect_right_for_types<128, 256>(true);
}

/// Rounding a number to bfloat16 costs 2^-8 / sqrt(3) at most in the mean, and 2^-8 / sqrt(6) where
/// they are spread evenly: one such rounding of S~, on sm_90a one of m besides.
TYPED_TEST(Mixing, ErrsAsItsRoundingsDo) {
  constexpr double kRounding = 0x1p-8 / 2.449489743;
  const auto error = []<Precision P>(std::integral_constant<Precision, P>) {
    typename TestFixture::template Run<bfloat16, 64, 64, P> mixtures({40, 40});
    mixtures.launch(false);
    return mixtures.relative_error() / kRounding;
  };
  const double roundings = TestFixture::kSm80 ? 1 : std::sqrt(2);
  EXPECT_NEAR(error(std::integral_constant<Precision, Precision::kSingle>{}), roundings, 0.1);
  EXPECT_LT(error(std::integral_constant<Precision, Precision::kPair>{}), 0x1p-6);
}

TYPED_TEST(Mixing, WorksInAnyOrderOfThreads) {
  for (std::uint64_t seed = 1; seed < 4; ++seed) {  // one of each kind: emulator/schedule.hpp
    this->template expect_right<half, 64, 64, Precision::kPair>({66, 40, 1, false, false, seed});
  }
}

TYPED_TEST(Mixing, GivesTheSumOfNothingForTheFirstOfEarlierMixtures) {
  constexpr int kD = TestFixture::kNarrow;
  typename TestFixture::template Run<bfloat16, kD, kD, Precision::kPair> mixtures({1, 1, 3, true});
  for (std::int64_t i = 0; i < mixtures.in_high.size(); ++i) {
    mixtures.in_high[i] = mixtures.in_low[i] = bfloat16{0x7FC0};
  }
  mixtures.launch();
  for (std::int64_t i = 0; i < mixtures.high.size(); ++i) {
    ASSERT_EQ(mixtures.high.value(i), 0);
    ASSERT_EQ(mixtures.low.value(i), 0);
  }
  for (std::int64_t i = 0; i < mixtures.z.size(); ++i) ASSERT_EQ(mixtures.z.value(i), 0);
}

/// S_b and z_b with infinities and NaN in them, of another b in each 32 columns: in all of these,
/// or in one. Rows that do not count b must have the bits that they have without.
template <class Kernels, class T, int D, int E, Precision P>
void expect_only_what_counts(const MixingCase& c, bool whole) {
  SCOPED_TRACE(c.text() + (whole ? ", in all columns" : ", in single columns"));
  using Own = Mixtures<Kernels, T, D, E, P>;
  constexpr double kSpecial[] = {std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity()};
  Own without(c), with(c);
  const auto is_special = [&](int at) { return whole || at % 32 == at / 32 % 32; };
  for (int at = 0; at < D * E; ++at) {
    const int group = at / 32;
    Array<T>& part = Own::kPair && group % 4 == 3 ? with.in_low : with.in_high;
    const std::int64_t from = std::int64_t{group % c.columns} * D * E + at;
    if (is_special(at)) part[from] = from_double<T>(kSpecial[group % 3]);
  }
  for (int d = 0; d < D; ++d) {
    with.in_z[d % c.columns * D + d] = static_cast<float>(kSpecial[d % 3]);
  }
  without.launch();
  with.launch();
  for (int i = 0; i < c.rows; ++i) {
    for (int at = 0; at < D * E; ++at) {
      const std::int64_t to = std::int64_t{i} * D * E + at;
      if (is_special(at) && at / 32 % c.columns < without.end(i)) {
        ASSERT_FALSE(std::isfinite(with.high.value(to))) << i << " " << at;
      } else {
        ASSERT_EQ(with.high[to].bits, without.high[to].bits) << i << " " << at;
        ASSERT_EQ(with.low[to].bits, without.low[to].bits) << i << " " << at;
      }
    }
    for (int d = 0; d < D; ++d) {
      const float z = with.z[i * D + d];
      if (d % c.columns < without.end(i)) {
        ASSERT_FALSE(std::isfinite(z)) << i << " " << d;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(z),
                  std::bit_cast<std::uint32_t>(without.z[i * D + d]))
            << i << " " << d;
      }
    }
  }
}

TYPED_TEST(Mixing, KeepsLaterSummariesOut) {
  constexpr Precision kSingle = Precision::kSingle, kPair = Precision::kPair;
  constexpr int kD = TestFixture::kNarrow;
  const MixingCase square{70, 70, 1, true, false, 1};
  expect_only_what_counts<TypeParam, bfloat16, 64, 64, kSingle>(square, false);
  expect_only_what_counts<TypeParam, bfloat16, 64, 64, kPair>(square, true);
  expect_only_what_counts<TypeParam, half, 64, 64, kSingle>(square, true);
  expect_only_what_counts<TypeParam, half, 64, 64, kPair>(square, false);
  expect_only_what_counts<TypeParam, bfloat16, 64, 64, kSingle>({70, 21, 1, true}, false);
  expect_only_what_counts<TypeParam, half, 64, 64, kPair>({21, 70, 1, true}, false);
  expect_only_what_counts<TypeParam, half, kD, kD, kPair>({35, 35, 1, true}, false);
  expect_only_what_counts<TypeParam, half, 64, 64, kSingle>({35, 35, 1, false}, false);
}

TYPED_TEST(Mixing, SkipsWhatLiesRightOfTheDiagonal) {
  using Own = typename TestFixture::template Run<bfloat16, 64, 64>;
  const auto products = [](bool earlier) {
    const emulator::Report r = Own({128, 128, 1, earlier}).launch(false);
    // wgmma has 4 warps of 16 tiles of 8 columns.
    return r.count("mma") + 64 * r.count("wgmma");
  };
  // Of 8 x 8 parts of 16 x 16, 36 are on or left of the diagonal.
  EXPECT_EQ(products(true) * 64, products(false) * 36);
}

TYPED_TEST(Mixing, GoesFromTheLastPairToTheFirst) {
  typename TestFixture::template Run<bfloat16, 64, 64> own({4, 4, 3, false, false, 0, 24});
  using Kernel = typename decltype(own)::Kernel;
  const auto p = own.params(false);
  emulator::Device device;  // in the order of thread blocks
  device.track("m", own.mixing.data(), own.mixing.bytes(), emulator::Access::kRead);
  device.track("in", own.in_high.raw(), own.in_high.bytes(), emulator::Access::kRead);
  const std::size_t pair = own.high.bytes() / 3;
  device.track("out", own.high.raw() + 2 * pair, pair, emulator::Access::kWrite);
  const unsigned blocks = Kernel::grid(p, 3);
  std::string fault;
  try {
    device.launch<Kernel>(blocks, p);
  } catch (const emulator::Fault& f) {
    fault = f.what();
  }
  // The first that does not write the last pair's.
  EXPECT_EQ(fault.rfind("outside: block " + std::to_string(blocks / 3) + ",", 0), 0u) << fault;
}

TYPED_TEST(Mixing, LeavesKeySumsOutWhereNobodyReadsThem) {
  typename TestFixture::template Run<half, 128, 128> mixtures({4, 4});
  mixtures.launch(false);
  for (std::int64_t i = 0; i < mixtures.z.size(); ++i) {
    ASSERT_TRUE(std::isnan(mixtures.z.value(i)));
  }
}

// ---- what sm_90a has of its own -----------------------------------------------------------------

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

/// Both parts, and zeros where b does not count and at the end of rows.
template <class T>
void expect_rounded(bool earlier) {
  Mixtures<MixingOnSm90, T, 64, 64, Precision::kPair> x({20, 13, 1, earlier});
  using Round = RoundedMixingSm80<T, Precision::kPair>;
  const MixingParameters stage = x.stage(false);
  emulator::Device device(1);
  device.track("m", x.mixing.data(), x.mixing.bytes(), emulator::Access::kRead);
  device.track("high", x.rounded_high.raw(), x.rounded_high.bytes(), emulator::Access::kWrite);
  device.track("low", x.rounded_low.raw(), x.rounded_low.bytes(), emulator::Access::kWrite);
  device.launch<Round>(Round::grid(stage, 1), stage);
  for (int i = 0; i < 20; ++i) {
    for (int b = 0; b < 16; ++b) {
      const double m = b < x.end(i) ? x.m(i, b) : 0, high = round_to<T>(m);
      ASSERT_EQ(x.rounded_high.value(16 * i + b), high) << i << " " << b;
      ASSERT_EQ(x.rounded_low.value(16 * i + b), round_to<T>(m - high)) << i << " " << b;
    }
  }
}

TEST(RoundedMixing, HasBothPartsAndZerosWhereNothingCounts) {
  for (const bool earlier : {false, true}) {
    expect_rounded<bfloat16>(earlier);
    expect_rounded<half>(earlier);
  }
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
