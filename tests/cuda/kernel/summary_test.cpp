// Tests of summaries of blocks: the definition in double, bytes moved, and memory that must stay
// untouched.

#include <gtest/gtest.h>

#include <cstdint>

#include "mhla/cuda/kernel/summary_mma_sm90.cuh"
#include "mhla/cuda/kernel/summary_sm80.cuh"
#include "mhla/cuda/kernel/summary_sm90.cuh"
#include "support/cuda/kernel_contract.hpp"
#include "support/cuda/summary_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct SummaryOfSm80 {
  static constexpr Arch kArch = Arch::kSm80;
  static constexpr bool kHas72 = true;
  template <class T, int D, int E, Precision P>
  using Kernel = SummarySm80<T, D, E, P>;
};
struct SummaryOfSm90 {
  static constexpr Arch kArch = Arch::kSm90a;
  static constexpr bool kHas72 = true;
  template <class T, int D, int E, Precision P>
  using Kernel = CopyingSummary<T, D, E, P>;
};

template <class Kernels>
class Summary : public KernelContract<Kernels> {
 protected:
  template <class T, int D, int E, Precision P = Precision::kSingle>
  using Summaries = SummaryRun<Kernels, T, D, E, P>;
  template <class T, int D, int E, Precision P>
  using OfIntegers = IntegerSummaryRun<Kernels, T, D, E, P>;
};
using Summaries = testing::Types<SummaryOfSm80, SummaryOfSm90>;
TYPED_TEST_SUITE(Summary, Summaries);

TYPED_TEST(Summary, IsTheSumOfBlocksOfAnyLength) {
  using Run = typename TestFixture::template Summaries<bfloat16, 64, 64>;
  std::uint64_t seed = 0;
  for (const int length : {1, 16, 17, 31, 49, 64, 97, 210, 256}) {
    for (const int tokens : {length, 2 * length + length / 2 + 1}) {
      expect_right<Run>({.blocks = sequence(tokens, length),
                         .key_map = FeatureMap::relu(0.25f),
                         .heads = 2,
                         .layout = static_cast<int>(seed % 3),
                         .multiprocessors = 3,
                         .seed = seed});
      ++seed;
    }
  }
}

TYPED_TEST(Summary, TakesBlocksOfSeveralBoxes) {
  using Small = typename TestFixture::template Summaries<bfloat16, 64, 64>;
  using Wide = typename TestFixture::template Summaries<bfloat16, 128, 256>;
  expect_right<Small>({.blocks = sequence(1777, 1000),
                       .key_map = FeatureMap::elu_plus_one(),
                       .multiprocessors = 3});
  expect_right<Small>({.blocks = {1, 40, 33, 1, 20, 30},
                       .key_map = FeatureMap::relu(0.5f),
                       .heads = 2,
                       .layout = 1,
                       .multiprocessors = 3,
                       .seed = 2});
  expect_right<Wide>({.blocks = {5, 6, 10, 5, 6, 10},
                      .key_map = FeatureMap::identity(),
                      .heads = 2,
                      .multiprocessors = 3,
                      .seed = 3});
}

TYPED_TEST(Summary, SkipsEmptySlotsAtTheEdgesOfGrids) {
  constexpr int kD = TestFixture::kNarrow;
  for (const int layout : {0, 1, 2}) {
    Case c{.blocks = {1, 14, 15, 1, 7, 7},
           .key_map = FeatureMap::elu_plus_one(),
           .batch = 2,
           .heads = 3,
           .layout = layout,
           .multiprocessors = 3,
           .seed = static_cast<std::uint64_t>(layout)};
    expect_right<typename TestFixture::template Summaries<half, 64, 64>>(c);
    c.blocks = {5, 7, 9, 2, 4, 5};
    c.key_map = FeatureMap::relu(0.5f);
    c.heads = 2;
    expect_right<typename TestFixture::template Summaries<bfloat16, kD, kD>>(c);
  }
}

TYPED_TEST(Summary, KnowsAllWidthsTypesMapsAndPrecisions) {
  Case c{.blocks = {3, 4, 8, 2, 4, 5}, .heads = 2, .seed = 0};
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(0.25f), FeatureMap::elu_plus_one()}) {
    c.key_map = map;
    c.layout = static_cast<int>(c.seed++);
    this->template expect_right_for_widths<TestFixture::template Summaries>(c, c);
  }
  const Case long_blocks{
      .blocks = sequence(500, 210), .layout = 2, .multiprocessors = 1, .seed = 6};
  expect_right<typename TestFixture::template Summaries<half, 128, 256, Precision::kPair>>(
      long_blocks);
}

TYPED_TEST(Summary, RoundsSumsOfIntegersOnce) {
  constexpr int kD = TestFixture::kNarrow;
  const Case c{.blocks = sequence(400, 210)};
  expect_right<typename TestFixture::template OfIntegers<half, kD, kD, Precision::kPair>>(c);
  expect_right<typename TestFixture::template OfIntegers<bfloat16, 64, 64, Precision::kPair>>(c);
  expect_right<typename TestFixture::template OfIntegers<bfloat16, 128, 128, Precision::kSingle>>(
      c);
  expect_right<typename TestFixture::template OfIntegers<half, 128, 256, Precision::kPair>>(c);
}

TYPED_TEST(Summary, DoesNotDependOnTheOrderOfThreads) {
  expect_same_in_any_order<typename TestFixture::template Summaries<bfloat16, 128, 128>>(
      {.blocks = sequence(400, 170), .key_map = FeatureMap::elu_plus_one()});
}

TYPED_TEST(Summary, KeepsWhatIsNotANumberInItsBlock) {
  constexpr int kD = TestFixture::kNarrow;
  expect_not_a_number_stays_in_its_block<
      typename TestFixture::template Summaries<bfloat16, kD, kD>>();
}

TYPED_TEST(Summary, LeavesKeySumsOutWhereNobodyReadsThem) {
  expect_key_sums_are_left_out<typename TestFixture::template Summaries<half, 64, 64>>();
}

TEST(SummarySm90, RefusesWhatTheCopyEngineCannotExpress) {
  SummaryRun<SummaryOfSm90, bfloat16, 64, 64, Precision::kSingle> run(
      {.blocks = sequence(514, 257)});
  EXPECT_FALSE(run.launch(0));
}

}  // namespace
}  // namespace cuda_test
