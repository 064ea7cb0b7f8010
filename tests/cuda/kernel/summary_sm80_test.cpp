// Summaries of blocks against the definition in double, what the kernel moves, what it must not
// touch.

#include "mhla/cuda/kernel/summary_sm80.cuh"

#include <gtest/gtest.h>

#include <cstdint>

#include "support/cuda/summary_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct Kernels {
  template <class T, int D, int E, Precision P>
  using Kernel = SummarySm80<T, D, E, P>;
};

template <class T, int D, int E, Precision P = Precision::kSingle>
using Summaries = SummaryRun<Kernels, T, D, E, P>;
template <class T, int D, int E, Precision P>
using OfIntegers = IntegerSummaryRun<Kernels, T, D, E, P>;

TEST(SummarySm80, SumsBlocksOfSequencesOfAnyLength) {
  std::uint64_t seed = 0;
  for (const int length : {1, 16, 31, 49, 64, 97, 210, 256}) {
    for (const int tokens : {length, 2 * length + length / 2 + 1}) {
      expect_right<Summaries<bfloat16, 64, 64>>({.blocks = sequence(tokens, length),
                                                 .key_map = FeatureMap::relu(0.25f),
                                                 .heads = 2,
                                                 .layout = static_cast<int>(seed % 3),
                                                 .seed = seed});
      ++seed;
    }
  }
  expect_right<Summaries<bfloat16, 128, 128>>(
      {.blocks = sequence(1100, 1000), .key_map = FeatureMap::identity(), .seed = 3});
}

TEST(SummarySm80, SkipsEmptySlotsAtTheEdgesOfGrids) {
  for (const int layout : {0, 1, 2}) {
    const auto seed = static_cast<std::uint64_t>(layout);
    expect_right<Summaries<half, 64, 64>>({.blocks = {1, 14, 15, 1, 7, 7},
                                           .key_map = FeatureMap::elu_plus_one(),
                                           .batch = 2,
                                           .heads = 3,
                                           .layout = layout,
                                           .seed = seed});
    expect_right<Summaries<bfloat16, 72, 72>>({.blocks = {5, 7, 9, 2, 4, 5},
                                               .key_map = FeatureMap::relu(0.5f),
                                               .heads = 2,
                                               .layout = layout,
                                               .seed = seed + 3});
  }
}

template <class T, int D, int E>
void expect_right_for_all_maps() {
  std::uint64_t seed = 0;
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(0.25f), FeatureMap::elu_plus_one()}) {
    const Case c{.blocks = {3, 4, 8, 2, 4, 5},
                 .key_map = map,
                 .heads = 2,
                 .layout = static_cast<int>(seed % 3),
                 .seed = seed};
    expect_right<Summaries<T, D, E, Precision::kSingle>>(c);
    expect_right<Summaries<T, D, E, Precision::kPair>>(c);
    ++seed;
  }
}

TEST(SummarySm80, KnowsAllWidthsTypesMapsAndPrecisions) {
  expect_right_for_all_maps<bfloat16, 64, 64>();
  expect_right_for_all_maps<half, 64, 64>();
  expect_right_for_all_maps<bfloat16, 72, 72>();
  expect_right_for_all_maps<half, 72, 72>();
  expect_right_for_all_maps<bfloat16, 128, 128>();
  expect_right_for_all_maps<half, 128, 128>();
  expect_right_for_all_maps<bfloat16, 128, 256>();
  expect_right_for_all_maps<half, 128, 256>();
}

TEST(SummarySm80, RoundsSumsOfIntegersOnce) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const Case c{.blocks = sequence(400, 330), .seed = seed};
    expect_right<OfIntegers<bfloat16, 64, 64, Precision::kPair>>(c);
    expect_right<OfIntegers<half, 72, 72, Precision::kPair>>(c);
    expect_right<OfIntegers<bfloat16, 128, 128, Precision::kSingle>>(c);
    expect_right<OfIntegers<bfloat16, 128, 256, Precision::kPair>>(c);
  }
}

TEST(SummarySm80, DoesNotDependOnTheOrderOfThreads) {
  expect_same_in_any_order<Summaries<bfloat16, 128, 128>>(
      {.blocks = sequence(400, 170), .key_map = FeatureMap::elu_plus_one()});
}

TEST(SummarySm80, KeepsWhatIsNotANumberInItsBlock) {
  expect_not_a_number_stays_in_its_block<Summaries<bfloat16, 72, 72>>();
}

TEST(SummarySm80, LeavesKeySumsOutWhereNobodyReadsThem) {
  expect_key_sums_are_left_out<Summaries<half, 64, 64>>();
}

}  // namespace
}  // namespace cuda_test
