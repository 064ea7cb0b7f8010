// Tests of the read-out: outputs from mixtures against the definition in double, reads and writes,
// and memory that must stay untouched.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "mhla/cuda/kernel/read_out_sm80.cuh"
#include "mhla/cuda/kernel/read_out_sm80_config.cuh"
#include "mhla/cuda/kernel/read_out_sm90.cuh"
#include "mhla/cuda/kernel/read_out_sm90_config.cuh"
#include "support/cuda/kernel_contract.hpp"
#include "support/cuda/read_out_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct ReadOutOfSm80 {
  static constexpr Arch kArch = Arch::kSm80;
  static constexpr bool kHas72 = true;
  template <class T, int D, int E, Precision P>
  using Kernel = ReadOutSm80<T, D, E, P>;

  /// Every 256 slots of a block read the mixture once.
  static int mixture_reads(const TokenBlocks& blocks) { return (blocks.slots() + 255) / 256; }
};
struct ReadOutOfSm90 {
  static constexpr Arch kArch = Arch::kSm90a;
  static constexpr bool kHas72 = true;
  template <class T, int D, int E, Precision P>
  using Kernel = ReadOutSm90<T, D, E, P>;

  static int mixture_reads(const TokenBlocks&) { return 1; }
};

template <class Kernels>
class ReadOut : public KernelContract<Kernels> {
 protected:
  template <class T, int D, int E, Precision P = Precision::kSingle>
  using Outputs = ReadOutRun<Kernels, T, D, E, P>;
  using Small = Outputs<bfloat16, 64, 64>;
  using Middle = Outputs<bfloat16, 128, 128>;
};
using ReadOuts = testing::Types<ReadOutOfSm80, ReadOutOfSm90>;
TYPED_TEST_SUITE(ReadOut, ReadOuts);

TYPED_TEST(ReadOut, TakesBlocksOfAnyLength) {
  using Pairs = typename TestFixture::template Outputs<half, 128, 128, Precision::kPair>;
  std::uint64_t seed = 0;
  for (const int length : {1, 15, 16, 17, 49, 64, 65, 210, 256, 257, 1000}) {
    if (length == 257 && !TestFixture::kSm80) continue;  // a prime above 256
    for (const int tokens : {length, 2 * length + length / 2 + 1}) {
      if (tokens > 1000) continue;
      Case c{.blocks = sequence(tokens, length),
             .query_map = FeatureMap::relu(0.125f),
             .heads = 2,
             .layout = static_cast<int>(seed % 3),
             .multiprocessors = 3,
             .seed = seed};
      expect_right<typename TestFixture::Small>(c);
      ++seed;
      if (tokens == length) continue;
      c.denominator = Denominator::kNone;
      c.heads = 1;
      expect_right<Pairs>(c);
    }
  }
}

TYPED_TEST(ReadOut, TakesBlocksOfSeveralBoxes) {
  using Wide = typename TestFixture::template Outputs<bfloat16, 128, 256>;
  expect_right<typename TestFixture::Small>({.blocks = sequence(1777, 1000),
                                             .query_map = FeatureMap::elu_plus_one(),
                                             .multiprocessors = 3});
  expect_right<typename TestFixture::Middle>({.blocks = {1, 40, 33, 1, 20, 30},
                                              .query_map = FeatureMap::relu(0.5f),
                                              .layout = 1,
                                              .multiprocessors = 3,
                                              .seed = 2});
  expect_right<Wide>({.blocks = {5, 6, 10, 5, 6, 10},
                      .query_map = FeatureMap::identity(),
                      .denominator = Denominator::kNone,
                      .multiprocessors = 3,
                      .seed = 3});
}

TYPED_TEST(ReadOut, TakesGridsWithEmptySlotsAtTheEdges) {
  for (const int layout : {0, 1, 2}) {
    Case c{.blocks = {1, 14, 15, 1, 7, 7},
           .query_map = FeatureMap::relu(0.5f),
           .batch = 2,
           .heads = 3,
           .layout = layout,
           .multiprocessors = 3,
           .seed = static_cast<std::uint64_t>(layout)};
    expect_right<typename TestFixture::Small>(c);
    c.blocks = {5, 7, 9, 2, 4, 5};
    c.query_map = FeatureMap::elu_plus_one();
    c.heads = 2;
    expect_right<typename TestFixture::Small>(c);
  }
}

TYPED_TEST(ReadOut, KnowsAllWidthsTypesMapsAndDenominators) {
  const Case runs{.blocks = sequence(70, 32),
                  .query_map = FeatureMap::relu(0.5f),
                  .batch = 2,
                  .multiprocessors = 1};
  const Case image{.blocks = {1, 9, 10, 1, 4, 4},
                   .query_map = FeatureMap::identity(),
                   .denominator = Denominator::kNone,
                   .heads = 2,
                   .layout = 1,
                   .seed = 2};
  const Case video{.blocks = {3, 5, 6, 2, 3, 4},
                   .query_map = FeatureMap::elu_plus_one(),
                   .heads = 2,
                   .layout = 2,
                   .seed = 3};
  const Case others{.blocks = {1, 6, 10, 1, 3, 5},
                    .denominator = Denominator::kCrossQuery,
                    .batch = 2,
                    .heads = 2,
                    .layout = 1,
                    .seed = 4};
  for (const Case& c : {runs, image, video, others}) {
    this->template expect_right_for_widths<TestFixture::template Outputs>(c, c);
  }
}

TYPED_TEST(ReadOut, DividesByMixturesOfOtherQueriesSums) {
  constexpr int kD = TestFixture::kNarrow;
  expect_right<typename TestFixture::template Outputs<bfloat16, kD, kD>>(
      {.blocks = sequence(300, 300), .denominator = Denominator::kCrossQuery, .seed = 5});
}

TYPED_TEST(ReadOut, DoesNotDependOnTheOrderOfThreads) {
  expect_same_in_any_order<typename TestFixture::Middle>(
      {.blocks = sequence(350, 64), .query_map = FeatureMap::elu_plus_one(), .heads = 2});
}

TYPED_TEST(ReadOut, TokensShareNothingButTheirMixture) {
  const Case c{.blocks = sequence(80, 40), .heads = 2, .seed = 30};
  typename TestFixture::Small clean(c), spoilt(c);
  for (int d = 0; d < 64; ++d) spoilt.q.at(0, 21, 1, d) = bfloat16{0x7FC0};
  for (auto* run : {&clean, &spoilt}) ASSERT_TRUE(run->launch(2));
  clean.o.each([&](int b, int t, int h, int e) {
    if (t == 21 && h == 1) {
      EXPECT_FALSE(std::isfinite(spoilt.o.value(b, t, h, e)));
    } else {
      EXPECT_EQ(spoilt.o.at(b, t, h, e).bits, clean.o.at(b, t, h, e).bits);
    }
  });
}

TYPED_TEST(ReadOut, OtherBlocksNeverEnter) {
  const Case c{.blocks = {1, 9, 9, 1, 4, 5},
               .query_map = FeatureMap::relu(0.5f),
               .layout = 2,
               .multiprocessors = 3};
  typename TestFixture::Small run(c);
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

TYPED_TEST(ReadOut, NormalisesAndGatesOutputs) {
  Case c{.blocks = sequence(70, 32),
         .query_map = FeatureMap::relu(0.5f),
         .normed = true,
         .batch = 2,
         .multiprocessors = 1};
  expect_right_for_types<TestFixture::template Outputs, 64, 64>(c);
  c.gated = true;
  this->template expect_right_for_widths<TestFixture::template Outputs>(c, c);
  c.blocks = {3, 5, 6, 2, 3, 4};
  c.denominator = Denominator::kNone;
  c.heads = 2;
  c.layout = 2;
  this->template expect_right_for_widths<TestFixture::template Outputs>(c, c);
}

/// The kernel with the shared memory that every device has.
struct ReadOutOfLeast : ReadOutOfSm80 {
  template <class T, int D, int E, Precision P>
  using Kernel = ReadOutSm80<T, D, E, P, false, kLeastShared>;

  /// Pairs of (128, 256) take half of the columns at a time, and twice if squares are summed first.
  static int query_reads(const Case& c, int e, Precision precision) {
    return e < 256 || precision == Precision::kSingle ? 1 : c.normed ? 4 : 2;
  }
};

/// Checks the three kernels that have a variant with less shared memory.
void expect_right_with_the_least(const Case& c) {
  expect_right<ReadOutRun<ReadOutOfLeast, bfloat16, 128, 128, Precision::kPair>>(c);
  expect_right<ReadOutRun<ReadOutOfLeast, half, 128, 256, Precision::kSingle>>(c);
  expect_right<ReadOutRun<ReadOutOfLeast, bfloat16, 128, 256, Precision::kPair>>(c);
}

TEST(ReadOutSm80, FitsIntoTheLeastSharedMemory) {
  using Pairs = ReadOutSm80<half, 128, 256, Precision::kPair, false, kLeastShared>;
  static_assert(Pairs::kSharedBytes <= kLeastShared);
  Case c{.blocks = sequence(70, 32), .query_map = FeatureMap::relu(0.5f), .batch = 2};
  expect_right_with_the_least(c);
  c = {.blocks = {1, 9, 10, 1, 4, 4},
       .query_map = FeatureMap::identity(),
       .denominator = Denominator::kNone,
       .heads = 2,
       .layout = 1,
       .seed = 2};
  expect_right_with_the_least(c);
  c = {.blocks = sequence(300, 300), .denominator = Denominator::kCrossQuery, .seed = 5};
  expect_right_with_the_least(c);
}

TEST(ReadOutSm80, NormalisesWithTheLeastSharedMemory) {
  Case c{
      .blocks = sequence(290, 270), .query_map = FeatureMap::relu(0.5f), .normed = true, .seed = 6};
  expect_right_with_the_least(c);
  c.blocks = {3, 5, 6, 2, 3, 4};
  c.gated = true;
  c.heads = 2;
  c.layout = 2;
  expect_right_with_the_least(c);
}

TEST(ReadOutSm80, DoesNotDependOnTheOrderOfThreadsWithTheLeastSharedMemory) {
  expect_same_in_any_order<ReadOutRun<ReadOutOfLeast, bfloat16, 128, 256, Precision::kPair>>(
      {.blocks = sequence(150, 140), .normed = true, .heads = 2});
}

TEST(ReadOutSm90, RefusesWhatTheCopyEngineCannotExpress) {
  ReadOutRun<ReadOutOfSm90, bfloat16, 64, 64, Precision::kSingle> run(
      {.blocks = sequence(514, 257)});
  EXPECT_FALSE(run.launch(0));
}

/// Checks the numbers of slots for mixtures and boxes, with `count` boxes of `rows` rows per block.
template <int D, int E, Precision P = Precision::kSingle>
void expect_slots(int rows, int count, int mixtures, int boxes) {
  const auto slots = ReadOutSm90Config<D, E, P>::slots(rows * E * 2, count);
  EXPECT_EQ(slots.mixtures, mixtures) << D << " " << E << " " << rows;
  EXPECT_EQ(slots.boxes, boxes) << D << " " << E << " " << rows;
}

TEST(ReadOutSm90, HoldsTwoBoxesAndThenMixtures) {
  expect_slots<64, 64>(64, 1, 3, 4);
  expect_slots<64, 64>(64, 4, 3, 10);
  expect_slots<64, 64>(16, 16, 3, 16);
  expect_slots<64, 64>(256, 1, 3, 2);
  expect_slots<128, 128>(216, 1, 2, 2);
  expect_slots<128, 128, Precision::kPair>(216, 1, 1, 2);
  expect_slots<128, 256>(128, 1, 1, 2);
  expect_slots<128, 256>(128, 2, 1, 2);
  expect_slots<128, 256, Precision::kPair>(128, 2, 1, 1);
}

}  // namespace
}  // namespace cuda_test
