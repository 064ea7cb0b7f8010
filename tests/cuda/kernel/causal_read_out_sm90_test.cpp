// Outputs of the causal form against the definition in double, what the kernel reads and writes,
// and that no later token enters an output.

#include "mhla/cuda/kernel/causal_read_out_sm90.cuh"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "support/cuda/causal_read_out_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct Kernels {
  template <class T, int D, int E, Precision P>
  using Kernel = CausalReadOutSm90<T, D, E, P>;

  /// Everything once, S~ and z~ but for the first block.
  static CausalReads reads(const TokenBlocks& blocks) {
    return {.keys = static_cast<std::size_t>(blocks.tokens()),
            .mixtures = static_cast<std::size_t>(blocks.blocks() - 1)};
  }
};

template <class T, int D, int E, Precision P = Precision::kSingle>
using Outputs = CausalReadOutRun<Kernels, T, D, E, P>;

TEST(CausalReadOutSm90, GivesOutputsOfEveryWidth) {
  Case c{.blocks = sequence(150, 70),
         .query_map = FeatureMap::relu(0.5f),
         .key_map = FeatureMap::relu(0.25f),
         .batch = 2};
  expect_right_for_types<Outputs, 64, 64>(c);
  c.layout = 2;
  c.batch = 1;
  expect_right_for_types<Outputs, 128, 128>(c);
  c.blocks = sequence(150, 60);  // pairs of 128 x 256 leave room for no more than 64
  expect_right_for_types<Outputs, 128, 256>(c);
}

TEST(CausalReadOutSm90, GivesOutputsOfEveryFeatureMapWithoutDenominators) {
  const auto [signs, elu] = SignedCases();
  for (const Case& c : {signs, elu}) expect_right_for_types<Outputs, 64, 64>(c);
  expect_right_for_types<Outputs, 128, 128>(elu);
  expect_right_for_types<Outputs, 128, 256>(signs);
}

TEST(CausalReadOutSm90, TakesBlocksOfAnyLength) {
  std::uint64_t seed = 10;
  for (const int length : {1, 2, 15, 16, 17, 63, 64, 65, 128, 200, 256}) {
    Case c{.blocks = sequence(length == 1 ? 5 : 2 * length + length / 2, length),
           .layout = length % 3,
           .seed = ++seed};
    expect_right<Outputs<half, 64, 64, Precision::kPair>>(c);
    expect_right<Outputs<bfloat16, 128, 128>>(c);
    if (length > 128) continue;
    c.blocks = sequence(length, length);  // a single block: no mixtures
    expect_right<Outputs<bfloat16, 128, 256>>(c);
  }
}

TEST(CausalReadOutSm90, LaterValuesNeverEnterWhateverTheyAre) {
  for (const int token : {0, 1, 15, 16, 31, 40, 63, 64, 78, 79, 81}) {
    expect_no_later_value<Outputs, bfloat16, 64, 64>(80, token);
    expect_no_later_value<Outputs, half, 128, 256>(80, token);
  }
  expect_no_later_value<Outputs, bfloat16, 128, 128>(40, 30);
}

TEST(CausalReadOutSm90, LaterKeysNeverEnterWhateverTheyAre) {
  expect_no_later_key<Outputs<bfloat16, 64, 64>>();
}

TEST(CausalReadOutSm90, OrderDoesNotMatter) {
  expect_same_in_any_order<Outputs<bfloat16, 128, 128>>({.blocks = sequence(500, 96)});
}

template <int D, int E, Precision P = Precision::kSingle>
bool fits(int length) {
  return Outputs<bfloat16, D, E, P>({.blocks = sequence(2 * length, length)}).fits();
}

TEST(CausalReadOutSm90, RefusesBlocksThatDoNotFit) {
  EXPECT_TRUE((fits<64, 64, Precision::kPair>(256)));
  EXPECT_FALSE((fits<64, 64>(257)));
  EXPECT_TRUE((fits<128, 128>(256)));
  EXPECT_TRUE((fits<128, 256>(128)));
  EXPECT_FALSE((fits<128, 256>(129)));
  EXPECT_TRUE((fits<128, 256, Precision::kPair>(64)));
  EXPECT_FALSE((fits<128, 256, Precision::kPair>(65)));
}

}  // namespace
}  // namespace cuda_test
