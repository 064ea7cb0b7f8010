// Tests of the causal read-out: outputs against the definition in double, reads and writes, and
// that no later token enters an output.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "mhla/cuda/kernel/causal_read_out_sm80.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm80_config.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm90.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm90_config.cuh"
#include "mhla/cuda/kernel/causal_rings_sm90.cuh"
#include "mhla/cuda/kernel/feature_tile.cuh"
#include "support/cuda/causal_read_out_run.hpp"
#include "support/cuda/kernel_contract.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct CausalOfSm80 {
  static constexpr Arch kArch = Arch::kSm80;
  static constexpr bool kHas72 = true;
  template <class T, int D, int E, Precision P>
  using Kernel = CausalReadOutSm80<T, D, E, P>;

  /// Every 64 tokens read S~ and z~ once, except in the first block, and K and V of the block up to
  /// their last token.
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
struct CausalOfSm90 {
  static constexpr Arch kArch = Arch::kSm90a;
  static constexpr bool kHas72 = false;
  template <class T, int D, int E, Precision P>
  using Kernel = CausalReadOutSm90<T, D, E, P>;

  /// Every block reads K and V once, and S~ and z~ once except for the first block.
  static CausalReads reads(const TokenBlocks& blocks) {
    return {.keys = static_cast<std::size_t>(blocks.tokens()),
            .mixtures = static_cast<std::size_t>(blocks.blocks() - 1)};
  }
};

template <class Kernels>
class CausalReadOut : public KernelContract<Kernels> {
 protected:
  template <class T, int D, int E, Precision P = Precision::kSingle>
  using Outputs = CausalReadOutRun<Kernels, T, D, E, P>;
};
using CausalReadOuts = testing::Types<CausalOfSm80, CausalOfSm90>;
TYPED_TEST_SUITE(CausalReadOut, CausalReadOuts);

TYPED_TEST(CausalReadOut, GivesOutputsOfEveryWidth) {
  const Case c{.blocks = sequence(150, 70),
               .query_map = FeatureMap::relu(0.5f),
               .key_map = FeatureMap::relu(0.25f),
               .batch = 2,
               .layout = 1};
  Case wide = c;
  wide.blocks = sequence(150, 60);  // on sm_90a, pairs of 128 x 256 fit only up to 64 slots
  wide.batch = 1;
  this->template expect_right_for_widths<TestFixture::template Outputs>(c, wide);
}

TYPED_TEST(CausalReadOut, GivesOutputsOfEveryFeatureMapWithoutDenominators) {
  const auto [signs, elu] = SignedCases();
  this->template expect_right_for_widths<TestFixture::template Outputs>(elu, signs);
  expect_right_for_types<TestFixture::template Outputs, 64, 64>(signs);
}

TYPED_TEST(CausalReadOut, TakesBlocksOfAnyLength) {
  std::uint64_t seed = 10;
  for (const int length : {1, 2, 15, 16, 17, 63, 64, 65, 128, 200, 256, 400}) {
    if (length > 256 && !TestFixture::kSm80) continue;
    Case c{.blocks = sequence(length == 1 ? 5 : 2 * length + length / 2, length),
           .layout = length % 3,
           .seed = ++seed};
    expect_right<typename TestFixture::template Outputs<half, 64, 64, Precision::kPair>>(c);
    if (length > 200) continue;
    expect_right<typename TestFixture::template Outputs<bfloat16, 128, 128>>(c);
    if (length > 128 && !TestFixture::kSm80) continue;
    c.blocks = sequence(length, length);  // a single block: no mixtures
    expect_right<typename TestFixture::template Outputs<bfloat16, 128, 256>>(c);
  }
}

TYPED_TEST(CausalReadOut, LaterValuesNeverEnterWhateverTheyAre) {
  constexpr int kD = TestFixture::kNarrow;
  for (const int token : {0, 1, 15, 16, 31, 40, 63, 64, 78, 79, 81}) {
    expect_no_later_value<TestFixture::template Outputs, bfloat16, 64, 64>(80, token);
    expect_no_later_value<TestFixture::template Outputs, half, 64, 64>(80, token);
    expect_no_later_value<TestFixture::template Outputs, bfloat16, 128, 256>(80, token);
  }
  expect_no_later_value<TestFixture::template Outputs, bfloat16, kD, kD>(40, 13);
  expect_no_later_value<TestFixture::template Outputs, bfloat16, 128, 128>(40, 30);
}

TYPED_TEST(CausalReadOut, LaterKeysNeverEnterWhateverTheyAre) {
  expect_no_later_key<typename TestFixture::template Outputs<bfloat16, 64, 64>>();
}

TYPED_TEST(CausalReadOut, DoesNotDependOnTheOrderOfThreads) {
  expect_same_in_any_order<typename TestFixture::template Outputs<bfloat16, 128, 128>>(
      {.blocks = sequence(300, 96)});
}

TYPED_TEST(CausalReadOut, NormalisesAndGatesOutputs) {
  Case c{.blocks = sequence(150, 70),
         .query_map = FeatureMap::relu(0.5f),
         .key_map = FeatureMap::relu(0.25f),
         .normed = true,
         .layout = 1};
  expect_right_for_types<TestFixture::template Outputs, 64, 64>(c);
  c.gated = true;
  Case wide = c;
  wide.blocks = sequence(100, 60);
  wide.denominator = c.denominator = Denominator::kNone;
  this->template expect_right_for_widths<TestFixture::template Outputs>(c, wide);
}

template <int D, int E, Precision P = Precision::kSingle>
bool fits(int length) {
  const Case c{.blocks = sequence(2 * length, length)};
  return CausalReadOutRun<CausalOfSm90, bfloat16, D, E, P>(c).fits();
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

/// Checks the numbers of slots for mixtures, and for tiles of keys and values, of blocks of `tiles`
/// tiles.
template <int D, int E, Precision P = Precision::kSingle>
void expect_slots(int tiles, int mixtures, int key_values) {
  const auto slots = CausalReadOutSm90Config<D, E, P>::slots(tiles);
  EXPECT_EQ(slots.mixtures, mixtures) << D << " " << E << " " << tiles;
  EXPECT_EQ(slots.key_values, key_values) << D << " " << E << " " << tiles;
}

TEST(CausalReadOutSm90, HoldsTheTilesOfABlockAndThenMixtures) {
  expect_slots<64, 64>(1, 2, 4);
  expect_slots<64, 64>(4, 2, 4);
  expect_slots<128, 128>(1, 2, 3);
  expect_slots<128, 128>(3, 2, 3);
  expect_slots<128, 128>(4, 1, 4);
  expect_slots<128, 256>(1, 1, 2);
  expect_slots<128, 256>(2, 1, 2);
  expect_slots<128, 256, Precision::kPair>(1, 1, 1);
}

template <class T, int D, int E, Precision P = Precision::kSingle>
using Of90 = CausalReadOutRun<CausalOfSm90, T, D, E, P>;

/// Each tile of queries belongs to one warpgroup. Both warpgroups read about equally many key
/// tiles.
TEST(CausalReadOutSm90, WarpgroupsTakeTilesByTurns) {
  using Config = CausalReadOutSm90Config<128, 128, Precision::kSingle>;
  EXPECT_FALSE(Config::by_turns(1));  // one warpgroup would have nothing
  EXPECT_FALSE((CausalReadOutSm90Config<64, 64, Precision::kSingle>::by_turns(2)));
  EXPECT_FALSE((CausalReadOutSm90Config<128, 256, Precision::kSingle>::by_turns(2)));
  for (int tiles = 2; tiles <= 4; ++tiles) {
    EXPECT_TRUE(Config::by_turns(tiles));
    int keys[2] = {};
    for (int n = 0; n < tiles; ++n) {
      EXPECT_NE(Config::takes(0, n), Config::takes(1, n));
      keys[Config::takes(1, n) ? 1 : 0] += tiles - n;
    }
    EXPECT_LE(std::abs(keys[0] - keys[1]), tiles % 4 == 0 ? 0 : 1);
  }
  for (const int length : {65, 140, 256}) {
    for (const auto denominator : {Denominator::kKeySum, Denominator::kNone}) {
      const Case c{.blocks = sequence(3 * length - 30, length),
                   .denominator = denominator,
                   .batch = 2,
                   .layout = 1,
                   .seed = static_cast<std::uint64_t>(length)};
      expect_right<Of90<half, 128, 128>>(c);
    }
  }
  for (const int token : {0, 63, 64, 140, 191, 192, 250}) {
    expect_no_later_value<Of90, bfloat16, 128, 128>(256, token);
  }
  expect_same_in_any_order<Of90<bfloat16, 128, 128>>({.blocks = sequence(600, 256), .batch = 2});
}

}  // namespace
}  // namespace cuda_test
