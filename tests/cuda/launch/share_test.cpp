// Outputs of ranks have the bits of three stages on one device for every split.

#include "mhla/cuda/launch/share.cuh"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "support/cuda/share_run.hpp"
#include "support/random.hpp"

namespace cuda_test {
namespace {

constexpr Arch kArchs[] = {Arch::kSm80, Arch::kSm90a};

/// The last block is short. In two of the splits it is the only block of its rank.
TEST(Shares, SplitsOfASequenceHaveTheBitsOfOneDevice) {
  const CallShape shape{.heads = 2, .tokens = 17 * 16 + 5, .block = 16};
  const std::vector<int> lengths[] = {{277}, {80, 197}, {16, 128, 128, 5}, {256, 16, 5}};
  for (const Arch arch : kArchs) {
    for (const auto& tokens : lengths) {
      check_split<bfloat16, 64, 64>(shape, {tokens, tokens}, arch);
    }
  }
}

/// Blocks have more tokens than a kernel takes at once. The only block of the last rank is short.
TEST(Shares, AShortBlockThatARankHasAloneIsCutAsTheOthersAre) {
  const CallShape shape{.heads = 1, .tokens = 2 * 210 + 100, .block = 210};
  CallShape image{.heads = 1, .tokens = {16, 21}, .block = {12, 7}, .layout = 2};
  for (const Arch arch : kArchs) {
    check_split<bfloat16, 64, 64>(shape, {{420, 100}, {420, 100}}, arch);
    check_split<half, 64, 64>(image, {{12, 4}, {12, 4}}, arch);
  }
}

/// While summaries of a group are in flight, kernels compute summaries of the next group and
/// outputs of the group before.
TEST(Shares, HeadsTravelInGroups) {
  const CallShape shape{.batch = 2, .heads = 4, .tokens = 9 * 8, .block = 8};
  CallShape pairs{.batch = 3, .heads = 1, .tokens = 9 * 8, .block = 8};
  pairs.op.summaries = Precision::kPair;
  const std::vector<int> tokens{24, 8, 40};
  for (const Arch arch : kArchs) {
    check_split<bfloat16, 64, 64>(shape, {tokens, tokens}, arch, {}, 4);
    check_split<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch, {}, 8);
    check_split<half, 72, 72>(pairs, {tokens, tokens}, arch, {}, 2);
  }
}

TEST(Shares, GroupsAreTheSameOnAllRanks) {
  const CallShape shape{.heads = 12, .tokens = 170 * 8, .block = 8};
  Call<bfloat16> call = random_call<bfloat16, 64, 64>(shape, 1);
  for (const auto& [batch, heads, group] :
       {std::tuple(1, 12, HeadGroup{1, 3}), std::tuple(3, 4, HeadGroup{1, 2}),
        std::tuple(6, 2, HeadGroup{2, 2}), std::tuple(1, 1, HeadGroup{1, 1}),
        std::tuple(1, 7, HeadGroup{1, 4}), std::tuple(0, 12, HeadGroup{0, 12})}) {
    for (const auto& tokens : {std::vector<int>{8 * 20, 8 * 150}, std::vector<int>{8 * 170},
                               std::vector<int>{8, 8, 8, 8, 8 * 166}}) {
      Problem whole = problem_of(call);
      whole.batch = batch;
      whole.heads = heads;
      const std::vector<RankBlocks> blocks = blocks_of_ranks(whole, {tokens, tokens});
      for (std::size_t r = 0; r < tokens.size(); ++r) {
        Problem part = part_of(whole, {tokens, tokens}, r);
        const Share share =
            mhla::cuda::detail::make_share("share_test", blocks, static_cast<Index>(r), false, {});
        const auto plan = mhla::cuda::share_plan<64, 64>(part, share, {Arch::kSm90a, 2});
        const HeadGroup expected = tokens.size() == 2 ? group : HeadGroup{batch, heads};
        EXPECT_EQ(plan.group.batch, expected.batch) << batch << " x " << heads;
        EXPECT_EQ(plan.group.heads, expected.heads) << batch << " x " << heads;
      }
    }
  }
}

TEST(Shares, GridsAreSplitAlongTheirFirstAxis) {
  CallShape video{.heads = 1, .tokens = {6, 9, 10}, .block = {2, 3, 5}, .layout = 1};
  video.op.summaries = Precision::kPair;
  const CallShape frame{.heads = 2, .tokens = {5, 6, 8}, .block = {4, 3, 4}};
  CallShape image{.heads = 1, .tokens = {23, 12}, .block = {4, 3}, .layout = 2};
  image.op.denominator = Denominator::kNone;
  for (const Arch arch : kArchs) {
    check_split<bfloat16, 64, 64>(video, {{2, 4}, {2, 4}}, arch);
    check_split<bfloat16, 64, 64>(frame, {{4, 1}, {4, 1}}, arch);
    check_split<half, 72, 72>(image, {{4, 16, 3}, {4, 16, 3}}, arch);
  }
}

TEST(Shares, QueriesAndKeysHaveSplitsOfTheirOwn) {
  const CallShape shape{
      .heads = 2, .tokens = 120, .block = 30, .key_tokens = {20, 18}, .key_block = {4, 3}};
  for (const Arch arch : kArchs) {
    check_split<bfloat16, 128, 128>(shape, {{30, 60, 30}, {4, 4, 12}}, arch);
  }
}

/// A rank has more rows of m than a kernel takes at once, and begins in the middle of a tile of
/// rows.
TEST(Shares, ManyBlocksHaveTheBitsOfOneDevice) {
  const CallShape shape{.heads = 1, .tokens = 4 * 150, .block = 4};
  for (const Arch arch : kArchs) {
    check_split<bfloat16, 64, 64>(shape, {{4 * 17, 4 * 100, 4 * 33}, {4 * 17, 4 * 100, 4 * 33}},
                                  arch);
  }
}

/// The last block is short. In two of the splits it is the only block of its rank.
TEST(Shares, CausalSplitsHaveTheBitsOfOneDevice) {
  const CallShape shape{.heads = 2, .tokens = 17 * 16 + 5, .block = 16};
  CallShape pairs{.heads = 1, .tokens = 5 * 80 + 3, .block = 80, .layout = 2};
  pairs.op.summaries = Precision::kPair;
  CallShape narrow{.batch = 2, .tokens = 9 * 8, .block = 8};
  narrow.op.denominator = Denominator::kNone;
  const std::vector<int> lengths[] = {{277}, {80, 197}, {16, 128, 128, 5}, {256, 16, 5}};
  for (const Arch arch : kArchs) {
    for (const auto& tokens : lengths) {
      check_split<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch);
    }
    check_split<half, 128, 128, true>(pairs, {{80, 160, 163}, {80, 160, 163}}, arch);
    check_split<bfloat16, 72, 72, true>(narrow, {{8, 40, 24}, {8, 40, 24}}, arch);
  }
}

/// Ranks begin in the middle of a tile of the matrix, after whole tiles, and have several tiles.
TEST(Shares, CausalRanksBeginAnywhereInTheMatrix) {
  const CallShape shape{.heads = 1, .tokens = 4 * 210, .block = 4};
  const std::vector<int> tokens{4 * 17, 4 * 47, 4 * 100, 4, 4 * 45};
  for (const Arch arch : kArchs) {
    check_split<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch);
  }
}

/// Columns of a rank begin within a tile, after whole tiles, and no earlier rank has these columns.
TEST(Shares, OnlyABandTravels) {
  const CallShape shape{.heads = 1, .tokens = 4 * 150, .block = 4};
  const std::vector<int> tokens{4 * 17, 4 * 100, 4 * 33};
  CallShape cross{.heads = 1, .tokens = 12 * 4, .block = 4, .key_tokens = 14 * 4, .key_block = 4};
  cross.op.summaries = Precision::kPair;
  for (const Arch arch : kArchs) {
    check_split<bfloat16, 64, 64>(shape, {tokens, tokens}, arch, Pattern(150, 150, 9, 20));
    check_split<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch, Pattern(150, 150, 12, 3));
    check_split<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch, Pattern(150, 150, 0, 0));
    check_split<half, 128, 128>(cross, {{16, 16, 16}, {16, 8, 32}}, arch, Pattern(12, 14, 1, 0));
  }
}

/// Covers random numbers of ranks, splits and bands in both forms.
TEST(Shares, RandomSplitsHaveTheBitsOfOneDevice) {
  mhla::test::Random random(7);
  for (int run = 0; run < 6; ++run) {
    const auto any = [&](int least, int most) {
      return static_cast<int>(random.integer(least, most));
    };
    std::vector<int> tokens;
    for (int ranks = any(1, 5); ranks > 0; --ranks) tokens.push_back(4 * any(1, 40));
    const int blocks = std::accumulate(tokens.begin(), tokens.end(), 0) / 4;
    const Pattern pattern(blocks, blocks, any(0, blocks), any(0, blocks));
    const CallShape shape{.heads = 1, .tokens = 4 * blocks, .block = 4};
    const Arch arch = run % 2 == 0 ? Arch::kSm80 : Arch::kSm90a;
    SCOPED_TRACE("run " + std::to_string(run));
    if (run % 4 < 2) {
      check_split<bfloat16, 64, 64>(shape, {tokens, tokens}, arch, pattern);
    } else {
      check_split<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch, pattern);
    }
  }
}

TEST(Shares, RowsAreThoseOfAllPairs) {
  unsigned char bytes[4] = {};
  float sums[2] = {};
  Problem problem{};
  problem.batch = 2;
  problem.heads = 3;
  const mhla::cuda::SummaryArray all{bytes, bytes + 1, sums, 1, 5};
  for (const Precision precision : {Precision::kSingle, Precision::kPair}) {
    for (const Denominator denominator : {Denominator::kKeySum, Denominator::kNone}) {
      problem.op.summaries = precision;
      problem.op.denominator = denominator;
      mhla::cuda::SummaryArray arrays = all;
      if (denominator == Denominator::kNone) arrays.key_sum = nullptr;
      std::uint64_t row_bytes = 0;
      for (const SharedRows& rows : mhla::cuda::shared_rows<72, 72>(problem, arrays)) {
        row_bytes += rows.row_bytes;
      }
      EXPECT_EQ(row_bytes, (mhla::cuda::shared_bytes<72, 72>(problem)));
    }
  }
  EXPECT_EQ((mhla::cuda::shared_bytes<72, 72>(problem)), 6u * 4 * 72 * 72);
}

}  // namespace
}  // namespace cuda_test
