// Summaries of blocks against the definition in double, what the kernel moves, what it must not
// touch.

#include "mhla/cuda/kernel/summary_sm90.cuh"

#include <gtest/gtest.h>

#include <cstdint>

#include "support/cuda/summary_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct Kernels {
  template <class T, int D, int E, Precision P>
  using Kernel = SummarySm90<T, D, E, P>;
};

template <class T, int D, int E, Precision P = Precision::kSingle>
using Summaries = SummaryRun<Kernels, T, D, E, P>;
template <class T, int D, int E, Precision P>
using OfIntegers = IntegerSummaryRun<Kernels, T, D, E, P>;

TEST(SummarySm90, SumsBlocksOfSequencesOfAnyLength) {
  std::uint64_t seed = 0;
  for (const int length : {1, 16, 17, 49, 64, 210, 256}) {
    for (const int tokens : {length, 2 * length + length / 2 + 1}) {
      expect_right<Summaries<bfloat16, 64, 64>>({.blocks = sequence(tokens, length),
                                                 .heads = 2,
                                                 .layout = static_cast<int>(seed % 3),
                                                 .multiprocessors = 3,
                                                 .seed = seed});
      ++seed;
    }
  }
}

TEST(SummarySm90, SumsBlocksOfSeveralBoxes) {
  expect_right<Summaries<bfloat16, 64, 64>>({.blocks = sequence(1777, 1000),
                                             .key_map = FeatureMap::elu_plus_one(),
                                             .multiprocessors = 3});
  expect_right<Summaries<bfloat16, 64, 64>>({.blocks = {1, 40, 33, 1, 20, 30},
                                             .key_map = FeatureMap::relu(0.5f),
                                             .heads = 2,
                                             .layout = 1,
                                             .multiprocessors = 3,
                                             .seed = 2});
  expect_right<Summaries<bfloat16, 128, 256>>({.blocks = {5, 6, 10, 5, 6, 10},
                                               .key_map = FeatureMap::identity(),
                                               .heads = 2,
                                               .multiprocessors = 3,
                                               .seed = 3});
}

TEST(SummarySm90, SkipsEmptySlotsAtTheEdgesOfGrids) {
  for (const int layout : {0, 1, 2}) {
    Case c{.blocks = {1, 14, 15, 1, 7, 7},
           .key_map = FeatureMap::relu(0.5f),
           .batch = 2,
           .heads = 3,
           .layout = layout,
           .multiprocessors = 3,
           .seed = static_cast<std::uint64_t>(layout)};
    expect_right<Summaries<bfloat16, 64, 64>>(c);
    c.blocks = {5, 7, 9, 2, 4, 5};
    c.key_map = FeatureMap::elu_plus_one();
    c.heads = 2;
    expect_right<Summaries<bfloat16, 64, 64>>(c);
  }
}

TEST(SummarySm90, KnowsAllWidthsTypesAndMaps) {
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(0.25f), FeatureMap::elu_plus_one()}) {
    const Case c{.blocks = {3, 5, 8, 3, 4, 3}, .key_map = map, .heads = 2, .seed = 3};
    expect_right<Summaries<half, 64, 64, Precision::kPair>>(c);
    expect_right<Summaries<bfloat16, 128, 128>>(c);
    expect_right<Summaries<half, 128, 256>>(c);
  }
  const Case c{.blocks = sequence(500, 210), .layout = 2, .multiprocessors = 1, .seed = 6};
  expect_right<Summaries<bfloat16, 128, 128, Precision::kPair>>(c);
  expect_right<Summaries<bfloat16, 128, 256, Precision::kPair>>(c);
}

TEST(SummarySm90, RoundsSumsOfIntegersOnce) {
  const Case c{.blocks = sequence(400, 210)};
  expect_right<OfIntegers<bfloat16, 128, 128, Precision::kSingle>>(c);
  expect_right<OfIntegers<bfloat16, 128, 256, Precision::kPair>>(c);
}

TEST(SummarySm90, OrderDoesNotMatter) {
  expect_same_in_any_order<Summaries<bfloat16, 64, 64>>(
      {.blocks = sequence(700, 64), .key_map = FeatureMap::elu_plus_one(), .heads = 2});
}

TEST(SummarySm90, KeepsWhatIsNotANumberInItsBlock) {
  expect_not_a_number_stays_in_its_block<Summaries<bfloat16, 64, 64>>();
}

TEST(SummarySm90, LeavesKeySumsOutWhereNobodyReadsThem) {
  expect_key_sums_are_left_out<Summaries<bfloat16, 64, 64>>();
}

TEST(SummarySm90, RefusesWhatTheCopyEngineCannotExpress) {
  Summaries<bfloat16, 64, 64> run({.blocks = sequence(514, 257)});
  EXPECT_FALSE(run.launch(0));
}

}  // namespace
}  // namespace cuda_test
