// Tests of mixtures of summaries: the definition in double, bytes moved, and memory that must stay
// untouched.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "mhla/cuda/kernel/key_sum_mixing.cuh"
#include "mhla/cuda/kernel/key_sum_team.cuh"
#include "mhla/cuda/kernel/mixing_sm80.cuh"
#include "mhla/cuda/kernel/mixing_sm80_config.cuh"
#include "mhla/cuda/kernel/pattern_bits.cuh"
#include "mhla/cuda/kernel/rounded_mixing.cuh"
#include "support/cuda/mixing_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT
using mhla::Index;
using mhla::Pattern;

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

  /// Covers all pairs of width, type, precision, `earlier` and `few_bits`, not all combinations.
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

/// Rounding to bfloat16 has a root mean square error of at most 2^-8 / sqrt(3), and of 2^-8 /
/// sqrt(6) for evenly spread numbers. S~ is rounded once. On sm_90a, m is rounded once too.
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
    // wgmma counts per warp: 4 warps, 16 tiles of 8 columns.
    return r.count("mma") + 64 * r.count("wgmma");
  };
  // 36 of the 8 x 8 parts of 16 x 16 are on or left of the diagonal.
  EXPECT_EQ(products(true) * 64, products(false) * 36);
}

TYPED_TEST(Mixing, GoesFromTheLastPairToTheFirst) {
  typename TestFixture::template Run<bfloat16, 64, 64> run({4, 4, 3, false, false, 0, 24});
  using Kernel = typename decltype(run)::Kernel;
  const auto p = run.params(false);
  emulator::Device device;  // in the order of thread blocks
  device.track("m", run.mixing.data(), run.mixing.bytes(), emulator::Access::kRead);
  device.track("in", run.in_high.raw(), run.in_high.bytes(), emulator::Access::kRead);
  const std::size_t pair = run.high.bytes() / 3;
  device.track("out", run.high.raw() + 2 * pair, pair, emulator::Access::kWrite);
  const unsigned blocks = Kernel::grid(p, 3);
  std::string fault;
  try {
    device.launch<Kernel>(blocks, p);
  } catch (const emulator::Fault& f) {
    fault = f.what();
  }
  // The first thread block that does not write mixtures of the last pair.
  EXPECT_EQ(fault.rfind("outside: block " + std::to_string(blocks / 3) + ",", 0), 0u) << fault;
}

TYPED_TEST(Mixing, LeavesKeySumsOutWhereNobodyReadsThem) {
  typename TestFixture::template Run<half, 128, 128> mixtures({4, 4});
  mixtures.launch(false);
  for (std::int64_t i = 0; i < mixtures.z.size(); ++i) {
    ASSERT_TRUE(std::isnan(mixtures.z.value(i)));
  }
}

/// Expects high and low parts, with zeros for blocks b that do not count and at the end of rows.
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

/// A pattern of single coefficients and empty rows, columns and strips.
Pattern scattered(Index rows, Index columns) {
  std::vector<std::vector<Index>> lists(static_cast<std::size_t>(rows));
  for (Index i = 0; i < rows; i += 3) {
    for (const Index b : {i * 7 % columns, i * i % columns}) {
      if (b / 32 % 3 != 1) lists[static_cast<std::size_t>(i)].push_back(b);
    }
    auto& list = lists[static_cast<std::size_t>(i)];
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  return {columns, lists};
}

// Cases: bands within one strip and over several, rows without a coefficient, lists, and more
// strips than a word has bits.
TEST(MixingSm80, SkipsStripsOutsideOfThePattern) {
  for (const bool earlier : {false, true}) {
    for (const auto& [lower, upper] : {std::pair{0, 0}, {3, 40}, {70, 0}}) {
      const MixingCase c{.rows = 150,
                         .columns = 130,
                         .earlier = earlier,
                         .pattern = Pattern(150, 130, lower, upper)};
      expect_right_mixtures<MixingOfPattern, bfloat16, 32, 32>(c);
    }
    expect_right_mixtures<MixingOfPattern, half, 48, 48, Precision::kPair>(
        {.rows = 130, .columns = 200, .earlier = earlier, .pattern = scattered(130, 200)});
  }
  expect_right_mixtures<MixingOfPattern, half, 32, 32>(
      {.rows = 3, .columns = 1200, .pattern = Pattern(1200, {{5, 1030, 1190}, {}, {700}})});
}

// Products by 0 add exact zeros.
TEST(MixingSm80, GivesAPatternTheBitsOfAllCoefficients) {
  MixingCase c{.rows = 150, .columns = 150, .pattern = scattered(150, 150)};
  Mixtures<MixingOfPattern, bfloat16, 64, 64, Precision::kSingle> skipping(c);
  Mixtures<MixingOnSm80, bfloat16, 64, 64, Precision::kSingle> whole(c);
  whole.pattern = PatternMemory({});
  whole.c.pattern = {};
  skipping.launch();
  whole.launch();
  EXPECT_EQ(std::memcmp(skipping.high.raw(), whole.high.raw(), whole.high.bytes()), 0);
  EXPECT_EQ(std::memcmp(skipping.z.raw(), whole.z.raw(), whole.z.bytes()), 0);
}

TEST(RoundedMixing, HasBothPartsAndZerosWhereNothingCounts) {
  for (const bool earlier : {false, true}) {
    expect_rounded<bfloat16>(earlier);
    expect_rounded<half>(earlier);
  }
}

}  // namespace
}  // namespace cuda_test
