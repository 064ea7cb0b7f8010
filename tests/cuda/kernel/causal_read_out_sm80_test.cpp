// Outputs of the causal form against the definition in double, what the kernel reads and writes,
// and that no later token enters an output.

#include "mhla/cuda/kernel/causal_read_out_sm80.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "support/cuda/causal_read_out_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct Kernels {
  template <class T, int D, int E, Precision P>
  using Kernel = CausalReadOutSm80<T, D, E, P>;

  /// S~ and z~ once for 64 tokens but for the first block, K and V once for all 64 tokens of the
  /// block from theirs on.
  static CausalReads reads(const TokenBlocks& blocks) {
    CausalReads reads;
    for (int i = 0; i < blocks.blocks(); ++i) {
      const int length = std::min(blocks.slots(), blocks.tokens() - i * blocks.slots());
      for (int first = 0; first < length; first += 64) {
        reads.mixtures += i > 0;
        reads.keys += static_cast<std::size_t>(std::min(first + 64, length));
      }
    }
    return reads;
  }
};

template <class T, int D, int E, Precision P = Precision::kSingle>
using Outputs = CausalReadOutRun<Kernels, T, D, E, P>;

TEST(CausalReadOutSm80, GivesOutputsOfEveryWidth) {
  Case c{.blocks = sequence(150, 70),
         .query_map = FeatureMap::relu(0.5f),
         .key_map = FeatureMap::relu(0.25f),
         .batch = 2};
  expect_right_for_types<Outputs, 64, 64>(c);
  c.layout = 1;
  expect_right_for_types<Outputs, 72, 72>(c);
  c.layout = 2;
  c.batch = 1;
  expect_right_for_types<Outputs, 128, 128>(c);
  expect_right_for_types<Outputs, 128, 256>(c);
}

TEST(CausalReadOutSm80, GivesOutputsOfEveryFeatureMapWithoutDenominators) {
  const auto [signs, elu] = SignedCases();
  for (const Case& c : {signs, elu}) {
    expect_right_for_types<Outputs, 64, 64>(c);
    expect_right_for_types<Outputs, 72, 72>(c);
  }
  expect_right_for_types<Outputs, 128, 128>(elu);
  expect_right_for_types<Outputs, 128, 256>(signs);
}

TEST(CausalReadOutSm80, TakesBlocksOfAnyLength) {
  std::uint64_t seed = 10;
  for (const int length : {1, 2, 15, 16, 17, 63, 64, 65, 128, 200, 256, 400}) {
    Case c{.blocks = sequence(length == 1 ? 5 : 2 * length + length / 2, length),
           .layout = length % 3,
           .seed = ++seed};
    expect_right<Outputs<half, 64, 64, Precision::kPair>>(c);
    if (length > 200) continue;
    c.blocks = sequence(length, length);  // a single block: no mixtures
    expect_right<Outputs<bfloat16, 128, 256>>(c);
  }
}

TEST(CausalReadOutSm80, LaterValuesNeverEnterWhateverTheyAre) {
  for (const int token : {0, 1, 15, 16, 31, 40, 63, 64, 78, 79, 81}) {
    expect_no_later_value<Outputs, bfloat16, 64, 64>(80, token);
    expect_no_later_value<Outputs, half, 128, 256>(80, token);
  }
  expect_no_later_value<Outputs, half, 72, 72>(40, 13);
  expect_no_later_value<Outputs, bfloat16, 128, 128>(40, 30);
}

TEST(CausalReadOutSm80, LaterKeysNeverEnterWhateverTheyAre) {
  expect_no_later_key<Outputs<bfloat16, 64, 64>>();
}

}  // namespace
}  // namespace cuda_test
