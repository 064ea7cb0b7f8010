#include "mhla/cuda/attention/most_blocks.cuh"

#include <gtest/gtest.h>

#include <string>

#include "mhla/cuda/launch/plan.cuh"
#include "mhla/policy/partition.hpp"
#include "support/message_of.hpp"

namespace {

using mhla::Index;
using mhla::suggest_blocks;
using mhla::cuda::Arch;
using mhla::cuda::Device;
using mhla::cuda::Form;
using mhla::cuda::most_blocks;
using mhla::cuda::Plan;
using mhla::cuda::Problem;

constexpr Device kDevice90{Arch::kSm90a, 132}, kDevice80{Arch::kSm80, 108};
constexpr Device kDevice99{Arch::kSm80, 100, 89, 0, mhla::cuda::kLeastShared};

/// The plan of many heads of `blocks` blocks.
template <int D, int E>
Plan plan_of(Index tokens, Index blocks, const Device& device, bool causal) {
  const mhla::SuggestedBlocks sizes = suggest_blocks(tokens, blocks);
  Problem problem{};
  problem.batch = problem.heads = 32;
  problem.query_blocks = {1, 1, static_cast<int>(tokens),
                          1, 1, static_cast<int>(sizes.block_length)};
  problem.key_blocks = problem.query_blocks;
  const std::int64_t row = 256 * 2, token = problem.heads * row;
  problem.q = problem.k = problem.v = {nullptr, tokens * token, row, token};
  problem.o = {nullptr, tokens * token, row, token};
  problem.causal = causal;
  problem.op.denominator = mhla::cuda::Denominator::kNone;
  return mhla::cuda::plan<D, E>(problem, device);
}

/// Summaries move fewer bytes than tensors, or none.
template <int D, int E>
void expect_few_bytes() {
  for (const Device& device : {kDevice90, kDevice80, kDevice99}) {
    for (const bool causal : {false, true}) {
      for (const Index tokens : {1, 100, 256, 257, 500, 1024, 2000, 2048, 2049, 4096, 31500}) {
        SCOPED_TRACE(std::to_string(tokens) + (causal ? " causal" : ""));
        const auto most = most_blocks<D, E>(tokens, device, causal);
        ASSERT_GE(most.blocks, 1);
        const Plan plan = plan_of<D, E>(tokens, most.blocks, device, causal);
        const Index length = suggest_blocks(tokens, most.blocks).block_length;
        if (plan.form == Form::kThreeStage && tokens >= 2 * D) {
          EXPECT_GE(length, 2 * D);
          EXPECT_LT(plan.traffic.summaries, plan.traffic.tensors);
        }
      }
    }
  }
}

TEST(MostBlocks, LeavesFewerBytesToSummariesThanToTensors) {
  expect_few_bytes<32, 32>();
  expect_few_bytes<64, 64>();
  expect_few_bytes<128, 128>();
  expect_few_bytes<128, 256>();
}

TEST(MostBlocks, AreThoseOfTheFormsThatThePlanTakes) {
  const auto most = [](Index tokens, const Device& device, bool causal = false) {
    return most_blocks<64>(tokens, device, causal).blocks;
  };
  EXPECT_EQ(most(256, kDevice90), 256);
  EXPECT_EQ(most(257, kDevice90), 16);
  EXPECT_EQ(most(257, kDevice99), 8);
  EXPECT_EQ(most(2048, kDevice90, true), 32);
  EXPECT_EQ(most(2049, kDevice90, true), 16);  // 2049 / (2 * 64)
  EXPECT_EQ(most(2048, kDevice80, true), 16);
  EXPECT_EQ(most(8192, kDevice90), 64);
  EXPECT_EQ((most_blocks<128, 256>(8192, kDevice90, true).blocks), 32);
  EXPECT_EQ((plan_of<64, 64>(1024, 16, kDevice90, false).form), Form::kFused);
  EXPECT_EQ((plan_of<64, 64>(1024, 17, kDevice90, false).form), Form::kThreeStage);
  EXPECT_EQ((plan_of<64, 64>(2048, 32, kDevice90, true).form), Form::kFused);
}

TEST(MostBlocks, GivesTheReasonAndRefusesEmptySequences) {
  EXPECT_STREQ(most_blocks<64>(256, kDevice90).reason, "the quadratic form makes no summaries");
  EXPECT_STREQ(most_blocks<64>(1024, kDevice90).reason, "so many summaries fit into shared memory");
  EXPECT_STREQ(most_blocks<64>(8192, kDevice90).reason,
               "with blocks of 2 D tokens, summaries are fewer bytes than tensors");
  EXPECT_EQ(mhla::test::message_of<mhla::option_error>([] { most_blocks<64>(0, kDevice90); }),
            "mhla::cuda::most_blocks: tokens is 0, expected at least 1");
}

}  // namespace
