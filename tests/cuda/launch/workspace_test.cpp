#include "mhla/cuda/launch/workspace.cuh"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace {

using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::Precision;
using mhla::cuda::Problem;
using mhla::cuda::TokenBlocks;

constexpr Device kDevice{Arch::kSm90a, 132};

Problem fifteen_pairs_of_seven_blocks() {
  Problem problem{};
  problem.batch = 3;
  problem.heads = 5;
  problem.query_blocks = problem.key_blocks = TokenBlocks(1, 1, 7 * 49, 1, 1, 49);
  return problem;
}

TEST(WorkspaceParts, AreApartAndAligned) {
  for (const auto denominator :
       {Denominator::kNone, Denominator::kKeySum, Denominator::kCrossQuery}) {
    for (const auto precision : {Precision::kSingle, Precision::kPair}) {
      Problem problem = fifteen_pairs_of_seven_blocks();
      problem.op.denominator = denominator;
      problem.op.summaries = precision;
      const mhla::cuda::WorkspaceParts parts =
          mhla::cuda::workspace_parts<72, 72>(problem, scratch_of<72, 72>(problem, kDevice));
      const std::size_t matrices = 15u * 7 * 72 * 72 * 2, sums = 15u * 7 * 72 * 4;
      const std::size_t begins[] = {parts.summaries, parts.summaries_low, parts.key_sums,
                                    parts.mixtures,  parts.mixtures_low,  parts.mixed_key_sums,
                                    parts.scores,    parts.bytes};
      const bool pair = precision == Precision::kPair, none = denominator == Denominator::kNone;
      const bool cross = denominator == Denominator::kCrossQuery;
      const std::size_t sizes[] = {matrices,
                                   pair ? matrices : 0,
                                   none ? 0 : sums,
                                   matrices,
                                   pair ? matrices : 0,
                                   none || cross ? 0 : sums,
                                   cross ? std::size_t{15 * 7 * 49 * 4} : 0};
      for (int i = 0; i < 7; ++i) {
        EXPECT_EQ(begins[i] % 256, 0u);
        EXPECT_GE(begins[i + 1], begins[i] + sizes[i]);
        EXPECT_LT(begins[i + 1], begins[i] + sizes[i] + 256);
      }
    }
  }
}

TEST(WorkspaceParts, DifferentNumbersOfBlocksHaveDifferentSizes) {
  Problem problem = fifteen_pairs_of_seven_blocks();
  problem.op.denominator = Denominator::kNone;
  problem.query_blocks = TokenBlocks(1, 1, 90, 1, 1, 30);
  const mhla::cuda::WorkspaceParts parts =
      mhla::cuda::workspace_parts<64, 64>(problem, scratch_of<64, 64>(problem, kDevice));
  EXPECT_EQ(parts.mixtures - parts.summaries, 15u * 7 * 64 * 64 * 2);
  EXPECT_EQ(parts.bytes - parts.mixtures, 15u * 3 * 64 * 64 * 2);
}

TEST(WorkspaceParts, SummariesMayLieElsewhere) {
  Problem problem = fifteen_pairs_of_seven_blocks();
  problem.op.summaries = Precision::kPair;
  const auto parts =
      mhla::cuda::workspace_parts<64, 64>(problem, scratch_of<64, 64>(problem, kDevice));
  const auto others = mhla::cuda::workspace_parts<64, 64>(problem, {0, 7});
  EXPECT_EQ(others.mixtures, 0u);
  EXPECT_EQ(others.bytes, parts.bytes - parts.mixtures);
}

/// Shared memory keeps m of 128 rows and 512 columns, or 256 columns of pairs, and never m of more
/// than 256 rows.
TEST(WorkspaceParts, CoefficientsAreRoundedThatTheMixingDoesNotKeep) {
  alignas(256) static unsigned char memory[256];
  Problem problem = fifteen_pairs_of_seven_blocks();
  const auto rounded = [&](int rows, int columns, const Device& device = kDevice) {
    problem.query_blocks = TokenBlocks(1, 1, rows, 1, 1, 1);
    problem.key_blocks = TokenBlocks(1, 1, columns, 1, 1, 1);
    return scratch_of<64, 64>(problem, device).rounded;
  };
  EXPECT_EQ(rounded(64, 512), 0);
  EXPECT_EQ(rounded(64, 2100), 64 * 2104);
  EXPECT_EQ(rounded(128, 512), 0);
  EXPECT_EQ(rounded(256, 320), 0);
  EXPECT_EQ(rounded(257, 64), 257 * 64);
  EXPECT_EQ(rounded(1000, 513), 1000 * 520);
  EXPECT_EQ(rounded(1000, 513, {Arch::kSm80, 108}), 0);
  EXPECT_EQ((scratch_of<72, 72>(problem, kDevice).rounded), 0);
  problem.op.summaries = Precision::kPair;
  EXPECT_EQ(rounded(128, 256), 0);
  EXPECT_EQ(rounded(128, 257), 128 * 264);
  const auto scratch = scratch_of<64, 64>(problem, kDevice);
  const auto parts = mhla::cuda::workspace_parts<64, 64>(problem, scratch);
  EXPECT_EQ(parts.rounded_low, parts.rounded + 2 * 128 * 264);
  EXPECT_EQ(parts.bytes, parts.rounded + 2 * 2 * 128 * 264);
  const auto arrays = mhla::cuda::workspace_arrays<64, 64>(problem, scratch, memory);
  EXPECT_EQ(static_cast<std::size_t>(arrays.rounded.high - memory), parts.rounded);
  EXPECT_EQ(static_cast<std::size_t>(arrays.rounded.low - memory), parts.rounded_low);
}

TEST(WorkspaceArrays, AreThePartsAndNullWhereNothingReadsThem) {
  alignas(256) static unsigned char memory[256];
  for (const auto denominator :
       {Denominator::kNone, Denominator::kKeySum, Denominator::kCrossQuery}) {
    Problem problem = fifteen_pairs_of_seven_blocks();
    problem.op.denominator = denominator;
    const auto scratch = scratch_of<64, 64>(problem, kDevice);
    const auto parts = mhla::cuda::workspace_parts<64, 64>(problem, scratch);
    const auto arrays = mhla::cuda::workspace_arrays<64, 64>(problem, scratch, memory);
    const auto place = [](const void* p) {
      return static_cast<std::size_t>(static_cast<const unsigned char*>(p) - memory);
    };
    EXPECT_EQ(place(arrays.summaries.high), parts.summaries);
    EXPECT_EQ(place(arrays.mixtures.high), parts.mixtures);
    EXPECT_EQ(place(arrays.mixtures.low), parts.mixtures_low);
    EXPECT_EQ(arrays.summaries.key_sum == nullptr, denominator == Denominator::kNone);
    EXPECT_EQ(arrays.mixtures.key_sum == nullptr, denominator != Denominator::kKeySum);
    EXPECT_EQ(place(arrays.scores), parts.scores);
    EXPECT_EQ(arrays.rounded.high, nullptr);
  }
}

}  // namespace
