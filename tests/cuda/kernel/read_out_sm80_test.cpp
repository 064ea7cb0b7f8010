// Outputs from mixtures against the definition in double, what the kernel reads and writes, and
// what it must not.

#include "mhla/cuda/kernel/read_out_sm80.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "support/cuda/read_out_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct Kernels {
  template <class T, int D, int E, Precision P>
  using Kernel = ReadOutSm80<T, D, E, P>;

  /// Once for 256 slots of a block.
  static int mixture_reads(const TokenBlocks& blocks) { return (blocks.slots() + 255) / 256; }
};

template <class T, int D, int E, Precision P = Precision::kSingle>
using Outputs = ReadOutRun<Kernels, T, D, E, P>;

TEST(ReadOutSm80, GivesOutputsOfRunsOfTokens) {
  const Case c{.blocks = sequence(70, 32), .query_map = FeatureMap::relu(0.5f), .batch = 2};
  expect_right_for_types<Outputs, 64, 64>(c);
  expect_right_for_types<Outputs, 72, 72>(c);
  expect_right_for_types<Outputs, 128, 128>(c);
  expect_right_for_types<Outputs, 128, 256>(c);
}

TEST(ReadOutSm80, GivesOutputsOfBlocksOfImagesAndVideosWithEmptySlots) {
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
  for (const Case& c : {image, video}) {
    expect_right_for_types<Outputs, 64, 64>(c);
    expect_right_for_types<Outputs, 72, 72>(c);
  }
  expect_right_for_types<Outputs, 128, 128>(video);
  expect_right_for_types<Outputs, 128, 256>(image);
}

TEST(ReadOutSm80, DividesByMixturesOfOtherQueriesSums) {
  const Case c{.blocks = {1, 6, 10, 1, 3, 5},
               .denominator = Denominator::kCrossQuery,
               .batch = 2,
               .heads = 2,
               .layout = 1,
               .seed = 4};
  expect_right_for_types<Outputs, 64, 64>(c);
  expect_right_for_types<Outputs, 72, 72>(
      {.blocks = sequence(300, 300), .denominator = Denominator::kCrossQuery, .seed = 5});
  expect_right_for_types<Outputs, 128, 128>(c);
  expect_right_for_types<Outputs, 128, 256>(c);
}

TEST(ReadOutSm80, TakesBlocksOfAnyLength) {
  std::uint64_t seed = 10;
  for (const int length : {1, 15, 16, 17, 49, 64, 65, 210, 256, 257, 1000}) {
    Case c{.blocks = sequence(length == 1 ? 9 : length + length / 2, length),
           .layout = length % 3,
           .seed = ++seed};
    expect_right<Outputs<bfloat16, 64, 64>>(c);
    c.denominator = Denominator::kNone;
    expect_right<Outputs<half, 128, 128, Precision::kPair>>(c);
  }
}

TEST(ReadOutSm80, TokensShareNothingButTheirMixture) {
  const Case c{.blocks = sequence(80, 40), .heads = 2, .seed = 30};
  Outputs<bfloat16, 64, 64> clean(c), spoilt(c);
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

}  // namespace
}  // namespace cuda_test
