#include "mhla/policy/partition.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "contract/partition.hpp"
#include "support/any_partition.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"
#include "support/seeds.hpp"

namespace mhla {
namespace {

constexpr Index kMax = std::numeric_limits<Index>::max();

/// Blocks of one token each, last token first.
struct Backwards {
  Index count;

  Index tokens() const { return count; }
  Index blocks() const { return count; }
  Index block_size(Index) const { return 1; }
  Index runs(Index) const { return 1; }
  Run run(Index b, Index) const { return {count - 1 - b, 1}; }
};

/// One block of tokens in order, with a run per token.
struct ManyRuns {
  Index count;

  Index tokens() const { return count; }
  Index blocks() const { return 1; }
  Index block_size(Index) const { return count; }
  Index runs(Index) const { return count; }
  Run run(Index, Index r) const { return {r, 1}; }
};

TEST(Contiguous, ObeysTheLawsOfAPartition) {
  for (Index tokens = 0; tokens <= 40; ++tokens) {
    for (Index length = 1; length <= 45; ++length) {
      SCOPED_TRACE(std::to_string(tokens) + " in blocks of " + std::to_string(length));
      test::expect_partition_laws(Contiguous(tokens, length));
    }
  }
}

TEST(Contiguous, BlocksFollowEachOtherAndOnlyTheLastIsShort) {
  const Contiguous blocks(11, 4);
  EXPECT_EQ(blocks.tokens(), 11);
  EXPECT_EQ(blocks.blocks(), 3);
  EXPECT_EQ(blocks.block_length(), 4);
  EXPECT_EQ(blocks.block_size(0), 4);
  EXPECT_EQ(blocks.block_size(1), 4);
  EXPECT_EQ(blocks.block_size(2), 3);
  EXPECT_EQ(blocks.run(2, 0).begin, 8);
  EXPECT_EQ(Contiguous(0, 5).blocks(), 0);
}

TEST(Contiguous, HugeSizesDoNotOverflow) {
  const Contiguous one(5, kMax), many(kMax, 2), all(kMax, kMax);
  EXPECT_EQ(one.blocks(), 1);
  EXPECT_EQ(one.block_size(0), 5);
  EXPECT_EQ(many.blocks(), kMax / 2 + 1);
  EXPECT_EQ(many.block_size(kMax / 2), 1);
  EXPECT_EQ(all.blocks(), 1);
  EXPECT_EQ(all.block_size(0), kMax);
}

TEST(Contiguous, RejectsNegativeTokensAndEmptyBlocks) {
  EXPECT_EQ(test::message_of<option_error>([] { Contiguous(-1, 4); }),
            "mhla::Contiguous: tokens is -1, expected at least 0");
  EXPECT_EQ(test::message_of<option_error>([] { Contiguous(4, 0); }),
            "mhla::Contiguous: block_length is 0, expected at least 1");
}

TEST(Partition, LawsHoldForOnesOfAUser) {
  for (const Index count : {0, 1, 7}) test::expect_partition_laws(Backwards{count});
  for (const std::uint64_t seed : test::seeds(50)) {
    test::Random rng(seed);
    test::expect_partition_laws(test::random_partition(rng, rng.integer(0, 60)));
  }
}

TEST(BlockSizes, ObeysTheLawsOfAPartition) {
  test::expect_partition_laws(BlockSizes({}));
  test::expect_partition_laws(BlockSizes({0}));
  test::expect_partition_laws(BlockSizes({5, 0, 9, 2, 0}));
  for (const std::uint64_t seed : test::seeds(200)) {
    test::Random rng(seed);
    std::vector<Index> sizes(static_cast<std::size_t>(rng.integer(0, 12)));
    for (Index& size : sizes) size = rng.integer(0, 9);
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::expect_partition_laws(BlockSizes(sizes));
  }
}

TEST(BlockSizes, BlocksHaveTheGivenSizesInOrder) {
  const BlockSizes blocks{5, 0, 2};
  EXPECT_EQ(blocks.tokens(), 7);
  EXPECT_EQ(blocks.blocks(), 3);
  EXPECT_EQ(blocks.block_size(0), 5);
  EXPECT_EQ(blocks.block_size(1), 0);
  EXPECT_EQ(blocks.block_size(2), 2);
  EXPECT_EQ(blocks.run(2, 0).begin, 5);
  EXPECT_EQ(BlockSizes({}).blocks(), 0);
  EXPECT_EQ(BlockSizes({kMax, 0}).tokens(), kMax);
}

TEST(BlockSizes, RejectsNegativeSizesAndSumsThatDoNotFit) {
  EXPECT_EQ(test::message_of<option_error>([] {
              BlockSizes({3, -2});
            }),
            "mhla::BlockSizes: sizes has -2 at block 1, expected sizes >= 0");
  EXPECT_EQ(test::message_of<shape_error>([] {
              BlockSizes({1, kMax});
            }),
            "mhla::BlockSizes: sizes sum to more than fits, expected a sum that fits Index");
}

TEST(LargestBlock, IsTheLargestSizeAndZeroOfNone) {
  EXPECT_EQ(largest_block(Contiguous(0, 3)), 0);
  EXPECT_EQ(largest_block(Contiguous(2, 3)), 2);
  EXPECT_EQ(largest_block(Contiguous(7, 3)), 3);
  EXPECT_EQ(largest_block(BlockSizes({0, 4, 9, 1})), 9);
}

TEST(SuggestBlocks, IsTheLargestNumberThatTheDocumentationAllows) {
  for (Index tokens = 1; tokens <= 2000; ++tokens) {
    Index largest = 0;
    for (Index m = 1; m * m <= tokens; ++m) {
      const Index length = (tokens + m - 1) / m;
      if (Contiguous(tokens, length).blocks() == m) largest = m;
    }
    const SuggestedBlocks got = suggest_blocks(tokens);
    ASSERT_EQ(got.blocks, largest) << tokens;
    ASSERT_EQ(got.block_length, (tokens + largest - 1) / largest) << tokens;
    ASSERT_EQ(Contiguous(tokens, got.block_length).blocks(), got.blocks) << tokens;
    const Index most = tokens % 13 + 1;
    ASSERT_LE(suggest_blocks(tokens, most).blocks, most) << tokens;
    ASSERT_EQ(suggest_blocks(tokens, most).block_length,
              detail::ceil_div(tokens, std::min(most, largest)));
  }
}

TEST(SuggestBlocks, KnowsLongSequencesAndRejectsEmptyOnes) {
  constexpr Index kMany = Index{1} << 20;
  EXPECT_EQ(suggest_blocks(kMany).blocks, 1024);
  EXPECT_EQ(suggest_blocks(kMany).block_length, 1024);
  EXPECT_EQ(suggest_blocks(kMany - 1).blocks, 1023);
  EXPECT_EQ(suggest_blocks(kMany - 1).block_length, 1025);
  EXPECT_EQ(test::message_of<option_error>([] { suggest_blocks(0); }),
            "mhla::suggest_blocks: tokens is 0, expected at least 1");
  EXPECT_EQ(test::message_of<option_error>([] { suggest_blocks(4, 0); }),
            "mhla::suggest_blocks: most is 0, expected at least 1");
}

TEST(ExpectPartition, RejectsAnotherNumberOfTokensAndTokensLeftOut) {
  EXPECT_NO_THROW(detail::expect_partition("f", "blocks", Contiguous(10, 3), 10));
  EXPECT_EQ(test::message_of<shape_error>(
                [] { detail::expect_partition("f", "blocks", Contiguous(10, 3), 11); }),
            "mhla::f: blocks covers 10 tokens, expected 11 tokens: one per row, or along axis 1 of "
            "[B, N, H, D]");
  struct Lost : Contiguous {
    using Contiguous::Contiguous;
    Index blocks() const { return Contiguous::blocks() - 1; }
  };
  EXPECT_EQ(test::message_of<shape_error>(
                [] { detail::expect_partition("f", "blocks", Lost(10, 3), 10); }),
            "mhla::f: blocks covers 9 of its 10 tokens, expected 10 tokens: one per row, or along "
            "axis 1 of [B, N, H, D]");
}

TEST(ExpectOrdered, AcceptsSequencesAndRejectsOtherOrders) {
  EXPECT_NO_THROW(detail::expect_ordered("f", "blocks", Contiguous(10, 3)));
  EXPECT_NO_THROW(detail::expect_ordered("f", "blocks", Contiguous(0, 3)));
  EXPECT_NO_THROW(detail::expect_ordered("f", "blocks", BlockSizes({0, 4, 0, 2})));
  EXPECT_NO_THROW(detail::expect_ordered("f", "blocks", Backwards{1}));
  EXPECT_NO_THROW(detail::expect_ordered("f", "blocks", ManyRuns{1}));
  const auto text = [](const auto& blocks) {
    return test::message_of<option_error>([&] { detail::expect_ordered("f", "blocks", blocks); });
  };
  const std::string ordered =
      "mhla::f: blocks has a block 0 out of token order, expected blocks of consecutive tokens, "
      "one after another";
  EXPECT_EQ(text(Backwards{3}), ordered);
  EXPECT_EQ(text(ManyRuns{3}), ordered);
}

}  // namespace
}  // namespace mhla
