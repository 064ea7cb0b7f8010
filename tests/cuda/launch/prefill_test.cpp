// Tests of prefills of streams as launched, in the emulator: support/cuda/prefill_run.hpp.

#include "mhla/cuda/launch/prefill.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "mhla/cuda/kernel/streaming_prefill_sm80.cuh"
#include "support/cuda/prefill_run.hpp"

namespace cuda_test {
namespace {

using mhla::cuda::Arch, mhla::cuda::bfloat16, mhla::cuda::half, mhla::cuda::Denominator,
    mhla::cuda::Precision;

constexpr auto kRelu = mhla::cuda::FeatureMap::relu(1e-6f);

/// Prefills end inside the first block, at the begin of a block or in its middle. Others end in a
/// block's first steps, which add to the mixture, or one token before the stream's end.
TEST(Prefill, StepsGoOn) {
  const StreamCase c{5, 6, 30, kRelu, Denominator::kKeySum, 2, 2, 0, 1};
  for (const int tokens : {3, 12, 13, 14, 17, 29}) {
    check_prefills<bfloat16, 64, 64, Precision::kSingle>(c, {tokens}, Arch::kSm80);
  }
}

/// Prefills begin in the middle and at the begin of a block, after steps and after prefills. They
/// end within, at the end of and after the block.
TEST(Prefill, GoesOnWhereAStreamStands) {
  const StreamCase c{6, 6, 36, kRelu, Denominator::kKeySum, 2, 2, 0, 4};
  const std::vector<std::vector<int>> all = {
      {-1, -1, 20}, {3, 5, 6, 13, 30}, {12, 25}, {4, 6, 12, -1, 35}, {-1, -1, -1, -1, -1, -1, 13},
      {8, -1, 36}};
  for (const std::vector<int>& ends : all) {
    check_prefills<bfloat16, 64, 64, Precision::kSingle>(c, ends, Arch::kSm80);
  }
  const StreamCase none{6, 6, 36, kRelu, Denominator::kNone, 2, 1, 0, 5};
  check_prefills<half, 64, 64, Precision::kPair>(none, {7, 20, 31}, Arch::kSm80);
  check_prefills<bfloat16, 64, 64, Precision::kSingle>(c, {5, 20, -1, 32}, Arch::kSm90a);
  check_prefills<half, 64, 64, Precision::kPair>(none, {12, 31}, Arch::kSm90a);
}

/// Prefills begin within the first and at the begin of the second tile of the mixing matrix.
TEST(Prefill, GoesOnBehindManyBlocks) {
  const StreamCase c{70, 2, 140, kRelu, Denominator::kKeySum, 2, 1, 0, 6};
  check_prefills<bfloat16, 64, 64, Precision::kSingle>(c, {101, 139}, Arch::kSm80);
  check_prefills<bfloat16, 64, 64, Precision::kSingle>(c, {101, 139}, Arch::kSm90a);
  check_prefills<half, 64, 64, Precision::kPair>(c, {128, 139}, Arch::kSm90a);
}

TEST(Prefill, HeadsMayHaveMatricesOfTheirOwn) {
  StreamCase c{6, 6, 36, kRelu, Denominator::kKeySum, 2, 2, 0, 5};
  c.per_head = true;
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
    check_prefills<bfloat16, 64, 64, Precision::kSingle>(c, {5, 20, -1, 32}, arch);
  }
  check_prefills<half, 64, 64, Precision::kPair>(c, {7, 31}, Arch::kSm80);
}

TEST(Prefill, TakesSeveralSequencesAtOnce) {
  const StreamCase c{6, 6, 36, kRelu, Denominator::kKeySum, 3, 1, 0, 7};
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
    check_prefills<bfloat16, 64, 64, Precision::kSingle>(c, {5, 20, -1, 32}, arch);
  }
}

TEST(Prefill, AllWidths) {
  const StreamCase c{4, 16, 50, kRelu, Denominator::kKeySum, 2, 2, 0, 2};
  check_prefills<bfloat16, 64, 64, Precision::kSingle>(c, {33}, Arch::kSm90a);
  check_prefills<half, 72, 72, Precision::kPair>(c, {34}, Arch::kSm80);
  check_prefills<half, 72, 72, Precision::kPair>(c, {20, 34}, Arch::kSm90a);
  check_prefills<bfloat16, 128, 256, Precision::kSingle>(c, {34}, Arch::kSm80);
  check_prefills<bfloat16, 128, 256, Precision::kPair>(c, {15, 35}, Arch::kSm90a);
}

TEST(Prefill, AFullStreamHasNoRoom) {
  const StreamCase c{3, 4, 12, kRelu, Denominator::kNone, 1, 1, 0, 3};
  Prefilled<bfloat16, 64, 64, Precision::kSingle> x(c, 0, Arch::kSm80);
  x.prefill(0, 12);
  const double before = x.o.value(0, 10, 0, 0);
  x.step(11);
  EXPECT_EQ(x.o.value(0, 10, 0, 0), before);
  EXPECT_TRUE(std::isnan(x.o.value(0, 11, 0, 0)));
}

}  // namespace
}  // namespace cuda_test
