// Outputs from mixtures against the definition in double, what the kernel reads and writes, and
// what it must not.

#include "mhla/cuda/kernel/read_out_sm90.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "support/cuda/read_out_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct Kernels {
  template <class T, int D, int E, Precision P>
  using Kernel = ReadOutSm90<T, D, E, P>;

  static int mixture_reads(const TokenBlocks&) { return 1; }
};

template <class T, int D, int E, Precision P = Precision::kSingle>
using Outputs = ReadOutRun<Kernels, T, D, E, P>;

TEST(ReadOutSm90, GivesOutputsOfSequences) {
  std::uint64_t seed = 0;
  for (const int length : {1, 16, 17, 49, 64, 210, 256}) {
    for (const int tokens : {length, 2 * length + length / 2 + 1}) {
      expect_right<Outputs<bfloat16, 64, 64>>({.blocks = sequence(tokens, length),
                                               .query_map = FeatureMap::relu(0.125f),
                                               .heads = 2,
                                               .layout = static_cast<int>(seed % 3),
                                               .multiprocessors = 3,
                                               .seed = seed});
      ++seed;
    }
  }
}

TEST(ReadOutSm90, TakesBlocksOfSeveralBoxes) {
  expect_right<Outputs<bfloat16, 64, 64>>({.blocks = sequence(1777, 1000),
                                           .query_map = FeatureMap::elu_plus_one(),
                                           .multiprocessors = 3});
  expect_right<Outputs<bfloat16, 128, 128>>({.blocks = {1, 40, 33, 1, 20, 30},
                                             .query_map = FeatureMap::relu(0.5f),
                                             .layout = 1,
                                             .multiprocessors = 3,
                                             .seed = 2});
  expect_right<Outputs<bfloat16, 128, 256>>({.blocks = {5, 6, 10, 5, 6, 10},
                                             .query_map = FeatureMap::identity(),
                                             .denominator = Denominator::kNone,
                                             .multiprocessors = 3,
                                             .seed = 3});
}

TEST(ReadOutSm90, TakesGridsWithEmptySlotsAtTheEdges) {
  for (const int layout : {0, 1, 2}) {
    const auto seed = static_cast<std::uint64_t>(layout);
    expect_right<Outputs<bfloat16, 64, 64>>({.blocks = {1, 14, 15, 1, 7, 7},
                                             .query_map = FeatureMap::relu(0.5f),
                                             .batch = 2,
                                             .heads = 3,
                                             .layout = layout,
                                             .multiprocessors = 3,
                                             .seed = seed});
    expect_right<Outputs<bfloat16, 64, 64>>({.blocks = {5, 7, 9, 2, 4, 5},
                                             .query_map = FeatureMap::elu_plus_one(),
                                             .batch = 2,
                                             .heads = 2,
                                             .layout = layout,
                                             .multiprocessors = 3,
                                             .seed = seed});
  }
}

TEST(ReadOutSm90, KnowsAllWidthsTypesMapsAndDenominators) {
  struct {
    FeatureMap map;
    Denominator denominator;
  } const kinds[] = {{FeatureMap::identity(), Denominator::kNone},
                     {FeatureMap::relu(0.25f), Denominator::kKeySum},
                     {FeatureMap::elu_plus_one(), Denominator::kCrossQuery}};
  for (const auto& kind : kinds) {
    const Case c{.blocks = {3, 8, 6, 3, 4, 3},
                 .query_map = kind.map,
                 .denominator = kind.denominator,
                 .heads = 2,
                 .seed = 3};
    expect_right<Outputs<half, 64, 64, Precision::kPair>>(c);
    expect_right<Outputs<bfloat16, 128, 128>>(c);
    expect_right<Outputs<half, 128, 256>>(c);
  }
  const Case c{.blocks = sequence(500, 210),
               .query_map = FeatureMap::relu(0.125f),
               .layout = 2,
               .multiprocessors = 1,
               .seed = 6};
  expect_right<Outputs<bfloat16, 128, 128, Precision::kPair>>(c);
  expect_right<Outputs<bfloat16, 128, 256, Precision::kPair>>(c);
}

TEST(ReadOutSm90, OrderDoesNotMatter) {
  expect_same_in_any_order<Outputs<bfloat16, 128, 128>>(
      {.blocks = sequence(700, 64), .query_map = FeatureMap::elu_plus_one(), .heads = 2});
}

TEST(ReadOutSm90, OtherBlocksNeverEnter) {
  const Case c{.blocks = {1, 9, 9, 1, 4, 5},
               .query_map = FeatureMap::relu(0.5f),
               .layout = 2,
               .multiprocessors = 3};
  Outputs<bfloat16, 64, 64> run(c);
  const bfloat16 nan{0x7FFF};
  run.q.each([&](int b, int t, int h, int d) {
    if (c.blocks.block_of(t) == 2) run.q.at(b, t, h, d) = nan;
  });
  std::fill_n(run.mixtures.high.data() + 4 * 64 * 64, 64 * 64, nan);
  std::fill_n(run.mixtures.key_sum.data() + 3 * 64, 64, std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(run.launch(1));
  run.o.each([&](int b, int t, int h, int e) {
    const int block = c.blocks.block_of(t);
    ASSERT_EQ(std::isnan(run.o.value(b, t, h, e)), block >= 2 && block <= 4) << t << " " << e;
  });
}

TEST(ReadOutSm90, RefusesWhatTheCopyEngineCannotExpress) {
  Outputs<bfloat16, 64, 64> run({.blocks = sequence(514, 257)});
  EXPECT_FALSE(run.launch(0));
}

}  // namespace
}  // namespace cuda_test
