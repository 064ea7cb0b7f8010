// Tests of the operator of a pair in one thread block: outputs and rows of summaries against the
// definition in double, bytes moved, and memory that must stay untouched.

#include <gtest/gtest.h>

#include <utility>

#include "mhla/cuda/kernel/block_mixing_sm90.cuh"
#include "mhla/cuda/kernel/fused_overlapping_sm90.cuh"
#include "mhla/cuda/kernel/fused_sm80.cuh"
#include "mhla/cuda/kernel/fused_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_sm90.cuh"
#include "mhla/cuda/kernel/fused_sm90_config.cuh"
#include "mhla/cuda/kernel/summary_rows.cuh"
#include "support/cuda/fused_run.hpp"

namespace cuda_test {
namespace {

struct FusedOfSm80 {
  static constexpr Arch kArch = Arch::kSm80;
  template <class T, int D, int kRegions>
  using Kernel = FusedSm80<T, D, D, kRegions>;
};
struct FusedOfSm90 {
  static constexpr Arch kArch = Arch::kSm90a;
  template <class T, int D, int kRegions>
  using Kernel = FusedSm90<T, D, D, kRegions>;
};

struct FusedOfOverlappingHeads {
  static constexpr Arch kArch = Arch::kSm90a;
  template <class T, int D, int kRegions>
  using Kernel = FusedOverlappingSm90<T, D, D, kRegions>;
};

template <class Kernels>
class Fused : public testing::Test {
 protected:
  template <class T, int D, int kRegions>
  static void expect_right(const Case& c) {
    cuda_test::expect_right<FusedRun<Kernels, T, D, kRegions>>(c);
  }
  static constexpr int kNarrow = Kernels::kArch == Arch::kSm80 ? 12 : 16;  ///< regions of 72 x 72
};
using FusedKernels = testing::Types<FusedOfSm80, FusedOfSm90>;
TYPED_TEST_SUITE(Fused, FusedKernels);

TYPED_TEST(Fused, FourBlocksOfAnyLengthAreMixedAndReadOut) {
  const auto of = fused_case;
  this->template expect_right<bfloat16, 64, 4>(of(sequence(256, 64), kRelu, kKeySum, 1, 1, 1, 0));
  this->template expect_right<half, 64, 4>(of(sequence(4, 1), kElu, kKeySum, 2, 2, 2, 1));
  this->template expect_right<bfloat16, 64, 4>(of(sequence(100, 49), kElu, kKeySum, 3, 1, 2, 2));
  this->template expect_right<half, 64, 4>(of(sequence(421, 210), kRelu, kKeySum, 0, 1, 1, 0));
  this->template expect_right<bfloat16, 64, 4>(of(sequence(37, 37), kIdentity, kNone, 4, 2, 1, 2));
  this->template expect_right<half, 64, 4>(of(sequence(61, 16), kIdentity, kNone, 5, 1, 1, 0));
  this->template expect_right<bfloat16, 64, 4>(of(sequence(1100, 1024), kRelu, kNone, 6, 1, 1, 0));
}

TYPED_TEST(Fused, BoxesOfAGridMayReachBeyondIt) {
  const auto of = fused_case;
  this->template expect_right<bfloat16, 64, 16>(
      of({1, 27, 26, 1, 7, 7}, kElu, kKeySum, 1, 1, 1, 0));
  this->template expect_right<bfloat16, 64, 16>(of({3, 5, 7, 2, 3, 4}, kRelu, kKeySum, 2, 1, 2, 1));
  this->template expect_right<half, 72, 8>(of({3, 5, 7, 2, 3, 4}, kElu, kKeySum, 3, 2, 2, 2));
}

TYPED_TEST(Fused, SixteenBlocksFillTheRegions) {
  const auto of = fused_case;
  this->template expect_right<bfloat16, 64, 16>(of(sequence(256, 16), kRelu, kKeySum, 1, 1, 1, 0));
  this->template expect_right<half, 64, 16>(of(sequence(523, 33), kIdentity, kNone, 2, 1, 1, 0));
}

TYPED_TEST(Fused, SeventyTwoColumnsAreSharedByTenWarps) {
  constexpr int kMost = TestFixture::kNarrow;
  const auto of = fused_case;
  this->template expect_right<bfloat16, 72, kMost>(
      of(sequence(kMost * 33 - 2, 33), kElu, kKeySum, 1, 1, 1, 0));
  this->template expect_right<half, 72, kMost>(
      of(sequence(9 * 90, 90), kIdentity, kNone, 2, 1, 1, 1));
}

TYPED_TEST(Fused, WideSummariesFillWhatFits) {
  const auto of = fused_case;
  this->template expect_right<bfloat16, 128, 4>(of(sequence(271, 70), kElu, kKeySum, 1, 1, 2, 2));
  this->template expect_right<half, 128, 4>(of(sequence(3 * 17, 17), kIdentity, kNone, 2, 2, 1, 0));
}

TYPED_TEST(Fused, QueriesAndKeysMayDifferInNumber) {
  Case c{.blocks = sequence(150, 50), .key_blocks = sequence(100, 16)};
  this->template expect_right<bfloat16, 64, 16>(c);
  std::swap(c.blocks, c.key_blocks);
  this->template expect_right<bfloat16, 64, 16>(c);
}

TYPED_TEST(Fused, SchedulesChangeNoBit) {
  expect_same_in_any_order<FusedRun<TypeParam, half, 64, 4>>(
      fused_case(sequence(150, 40), kElu, kKeySum, 1, 1, 3));
}

TYPED_TEST(Fused, TheMixingMatrixKeepsMoreDigitsThanTheTensors) {
  FusedRun<TypeParam, bfloat16, 64, 4> x(fused_case(sequence(32, 16), kIdentity, kNone, 1));
  x.k.fill([] { return 1; });
  x.q.fill([] { return 1; });
  x.v.each([&](int b, int t, int h, int d) {  // S_1 = -S_0: only differences of m are left
    x.v.at(b, t, h, d) = from_double<bfloat16>(t < 16 ? 1 : -1);
  });
  for (int i = 0; i < 2; ++i) {
    x.mixing.at(i, 0) = 1 + 0x1p-12f;
    x.mixing.at(i, 1) = 1;
  }
  ASSERT_TRUE(x.launch(1));
  const double expected = 0.75 * 64 * 16 * 0x1p-12;
  x.o.each([&](int b, int t, int h, int d) { ASSERT_EQ(x.o.value(b, t, h, d), expected); });
}

TYPED_TEST(Fused, AQueryThatIsNanSpoilsNoOther) {
  expect_nan_query_spoils_no_other<FusedRun<TypeParam, bfloat16, 64, 4>>(
      fused_case(sequence(96, 24), kIdentity, kNone, 1));
}

/// The kernel with eight regions and the shared memory that every device has.
struct FusedOfLeast {
  static constexpr Arch kArch = Arch::kSm80;
  template <class T, int D, int kRegions>
  using Kernel = FusedSm80<T, D, D, kRegions, kLeastShared>;
};

TEST(FusedSm80, EightRegionsFitIntoTheLeastSharedMemory) {
  using Run = FusedRun<FusedOfLeast, bfloat16, 64, 8>;
  static_assert(FusedSm80<bfloat16, 64, 64, 8, kLeastShared>::kSharedBytes <= kLeastShared);
  expect_right<Run>(fused_case({1, 27, 25, 1, 14, 7}, kElu, kKeySum, 1, 1, 2, 1));
  expect_right<Run>(fused_case(sequence(8 * 33 - 2, 33), kRelu, kNone, 2, 2, 1, 2));
  expect_right<FusedRun<FusedOfLeast, half, 64, 8>>(
      fused_case(sequence(700, 90), kElu, kKeySum, 3));
}

TEST(FusedSm90, WritesTheBitsOfTheOtherKernel) {
  const Case c = fused_case({1, 27, 25, 1, 7, 7}, kElu, kKeySum, 1, 2, 2);
  FusedRun<FusedOfSm90, bfloat16, 64, 16> x(c);
  FusedRun<FusedOfSm80, bfloat16, 64, 16> y(c);
  ASSERT_TRUE(x.launch(1));
  ASSERT_TRUE(y.launch(1));
  EXPECT_TRUE(x.wrote_as(y));
}

// One thread block computes all heads, so rows after a box hold data of earlier heads.
TEST(FusedSm90, AHeadThatIsNanSpoilsNoOther) {
  Case c = fused_case(sequence(3 * 25, 25), kRelu, kKeySum, 1, 1, 4);
  c.multiprocessors = 1;
  expect_nan_head_spoils_no_other<FusedRun<FusedOfSm90, half, 64, 4>>(c);
  expect_nan_head_spoils_no_other<FusedRun<FusedOfOverlappingHeads, half, 64, 4>>(c);
}

template <class T, int D, int kRegions>
void expect_bits_of_the_other_order(Case c, int multiprocessors) {
  c.multiprocessors = multiprocessors;
  FusedRun<FusedOfSm90, T, D, kRegions> apart(c);
  ASSERT_TRUE(apart.launch(1));
  for (const std::uint64_t schedule : {0, 1, 2}) {
    FusedRun<FusedOfOverlappingHeads, T, D, kRegions> overlapping(c);
    ASSERT_TRUE(overlapping.launch(schedule));
    EXPECT_TRUE(overlapping.wrote_as(apart)) << overlapping.name() << ", schedule " << schedule;
    overlapping.expect_traffic();
  }
}

// Cases: more and fewer blocks of queries than of keys, blocks of several boxes, and thread blocks
// with different numbers of heads.
TEST(FusedOverlappingSm90, WritesTheBitsOfTheOtherOrder) {
  const auto of = fused_case;
  expect_bits_of_the_other_order<bfloat16, 64, 4>(
      of(sequence(4 * 70, 70), kElu, kKeySum, 1, 1, 3, 0), 1);
  expect_bits_of_the_other_order<half, 64, 16>(of({1, 27, 26, 1, 7, 7}, kRelu, kNone, 2, 1, 3, 1),
                                               2);
  expect_bits_of_the_other_order<half, 72, 8>(
      of(sequence(8 * 33 - 2, 33), kElu, kKeySum, 3, 2, 2, 2), 1);
  Case c{.blocks = sequence(150, 50), .key_blocks = sequence(100, 16), .heads = 4};
  expect_bits_of_the_other_order<bfloat16, 64, 16>(c, 1);
  std::swap(c.blocks, c.key_blocks);
  expect_bits_of_the_other_order<bfloat16, 64, 16>(c, 1);
}

TEST(FusedSm90, MoreThanSixteenBlocksAreMixedInTwoSteps) {
  expect_right<FusedRun<FusedOfSm90, bfloat16, 64, 20>>(
      fused_case(sequence(20 * 9, 9), kElu, kKeySum, 1));
}

TEST(FusedSm90, RefusesWhatItsBoxesCannotExpress) {
  const auto can = [](const TokenBlocks& queries, const TokenBlocks& keys) {
    FusedRun<FusedOfSm90, bfloat16, 64, 4> run({.blocks = queries, .key_blocks = keys});
    return run.launch(0);
  };
  EXPECT_FALSE(can(sequence(134, 67), sequence(134, 67)));  // a prime above 64
  // Queries would overwrite rows after the keys, which must stay zero.
  EXPECT_FALSE(can(sequence(64, 33), sequence(64, 31)));
  EXPECT_TRUE(can(sequence(64, 31), sequence(64, 33)));
  EXPECT_TRUE(can(sequence(64, 33), sequence(64, 16)));
}

}  // namespace
}  // namespace cuda_test
