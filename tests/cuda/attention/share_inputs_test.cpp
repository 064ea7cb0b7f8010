#include "mhla/cuda/attention/share_inputs.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "mhla/distributed/thread_ranks.hpp"
#include "support/message_of.hpp"

namespace {

using mhla::Index;
using mhla::Pattern;
using mhla::TensorView;
using mhla::cuda::Arch;
using mhla::cuda::Device;
using mhla::cuda::Operator;
using mhla::cuda::TokenBlocks;
using mhla::cuda::detail::PlannedShare;
using mhla::distributed::ThreadRank;
using mhla::test::message_of;
using T = Eigen::bfloat16;

/// A rank's arguments: 2 sequences of `tokens` tokens and 3 heads. No data is read.
struct ShareArguments {
  Index tokens = 100, batch = 2;
  TokenBlocks blocks = mhla::cuda::contiguous(tokens, 16);
  Operator op{};
  Device device{Arch::kSm90a, 2, 90, 12080};
  Pattern pattern{};
  Index query_stride = 64, key_stride = 64;  // from a head to the next

  template <bool kCausal = false>
  PlannedShare agree(ThreadRank& rank) const {
    TensorView<const T> q = mhla::bnhd<const T>(nullptr, batch, tokens, 3, 64), k = q;
    q.strides[2] = query_stride;
    k.strides[2] = key_stride;
    return mhla::cuda::detail::agree_on_share<64, 64, kCausal, T>(
        rank, {q, k, k}, blocks, blocks, op, mhla::bnhd<T>(nullptr, batch, tokens, 3, 64), device,
        pattern);
  }
};

ShareArguments of_tokens(Index tokens) {
  ShareArguments a;
  a.tokens = tokens;
  a.blocks = mhla::cuda::contiguous(tokens, 16);
  return a;
}

TEST(ShareInputs, BlocksAreThoseOfTheRanksOneAfterAnother) {
  const Index tokens[] = {64, 160, 5};  // 4 blocks, 10 blocks, one short block
  mhla::distributed::run_ranks(3, [&](ThreadRank& rank) {
    const PlannedShare planned = of_tokens(tokens[rank.rank()]).agree(rank);
    EXPECT_EQ(planned.share.key_blocks, (std::vector<Index>{0, 4, 14, 15}));
    EXPECT_EQ(planned.share.query_blocks, planned.share.key_blocks);
    EXPECT_EQ(planned.share.rank, rank.rank());
    EXPECT_EQ(planned.problem.query_blocks.slots(), 16);  // also of the short block
    EXPECT_EQ(planned.problem.key_blocks.slots(), 16);
    EXPECT_EQ(planned.plan.form, mhla::cuda::Form::kThreeStage);
    // 15 summaries of 6 pairs and their key sums, and the mixtures of the rank's own blocks.
    const auto bytes = static_cast<std::size_t>(planned.problem.query_blocks.blocks() + 15);
    EXPECT_EQ(planned.plan.workspace_bytes, bytes * 6 * (2 * 64 * 64 + 4 * 64));
  });
}

TEST(ShareInputs, CausalRanksReceiveWhatComesBefore) {
  const Index tokens[] = {64, 160, 5};
  mhla::distributed::run_ranks(3, [&](ThreadRank& rank) {
    const PlannedShare planned = of_tokens(tokens[rank.rank()]).agree<true>(rank);
    const Index first = planned.share.queries().first;
    EXPECT_EQ(planned.share.route.rows_received(), first);
    // 15 summaries, and mixtures from the next multiple of 64.
    const auto bytes = static_cast<std::size_t>(first + planned.share.queries().count + 15);
    EXPECT_EQ(planned.plan.workspace_bytes, bytes * 6 * (2 * 64 * 64 + 4 * 64));
  });
}

/// Returns the error on rank 0 after `change` on rank 1. Rank 2 has the same error.
std::string refusal(const std::function<void(ShareArguments&)>& change) {
  std::array<std::string, 3> said;
  mhla::distributed::run_ranks(3, [&](ThreadRank& rank) {
    ShareArguments a;
    if (rank.rank() == 1) change(a);
    said[static_cast<std::size_t>(rank.rank())] = message_of<mhla::error>([&] { a.agree(rank); });
  });
  EXPECT_EQ(said[0], said[2]);
  EXPECT_EQ(said[0] == "no exception", said[1] == "no exception") << said[1];
  return said[0];
}

TEST(ShareInputs, AllRanksRefuseWhatIsWrongOnOne) {
  EXPECT_EQ(refusal([](ShareArguments& a) { a.tokens = 99; }),
            "mhla::cuda::distributed: arguments were refused on rank 1 (mhla::cuda::distributed: q "
            "has shape [2, 99, 3, 64], expected [2, 100, 3, 64]), expected what every rank takes");
  EXPECT_EQ(
      refusal([](ShareArguments& a) { a.op.denominator = mhla::cuda::Denominator::kCrossQuery; }),
      "mhla::cuda::distributed: arguments were refused on rank 1 (mhla::cuda::distributed: op "
      "has a cross-query denominator, expected none or key sums), expected what every rank "
      "takes");
  EXPECT_EQ(
      refusal([](ShareArguments& a) { a.op.matrices = mhla::cuda::Matrices::kPerHead; }),
      "mhla::cuda::distributed: arguments were refused on rank 1 (mhla::cuda::distributed: "
      "op.matrices is kPerHead, expected kShared: ranks take one matrix), expected what every "
      "rank takes");
  EXPECT_EQ(refusal([](ShareArguments& a) { a.batch = 1; }),
            "mhla::cuda::distributed: q has sequences 1 on rank 1, expected 2 as on rank 0");
  EXPECT_EQ(refusal([](ShareArguments& a) { a.blocks = mhla::cuda::contiguous(100, 20); }),
            "mhla::cuda::distributed: key_blocks have [1, 1, 16] tokens on rank 0, expected [1, 1, "
            "20], the largest");
  EXPECT_EQ(refusal([](ShareArguments&) {}), "no exception");
}

/// Bits depend on the kernels.
TEST(ShareInputs, DevicesMustHaveTheSameKernels) {
  const std::string name = "mhla::cuda::distributed: ";
  EXPECT_EQ(refusal([](ShareArguments& a) { a.device.arch = Arch::kSm80; }),
            name + "device has kernels of architecture 80 on rank 1, expected 90 as on rank 0");
  EXPECT_EQ(refusal([](ShareArguments& a) { a.device.capability = 80; }),
            name + "device has compute capability 80 on rank 1, expected 90 as on rank 0");
  EXPECT_EQ(refusal([](ShareArguments& a) { a.device.toolkit = 13000; }),
            name + "device has kernels of CUDA 13000 on rank 1, expected 12080 as on rank 0");
  EXPECT_EQ(refusal([](ShareArguments& a) { a.device.multiprocessors = 3; }), "no exception");
  const std::string strides =
      " has strides for kernels of architecture 80 on rank 1, expected 90 as "
      "on rank 0";
  EXPECT_EQ(refusal([](ShareArguments& a) { a.key_stride = -64; }), name + "k" + strides);
  EXPECT_EQ(refusal([](ShareArguments& a) { a.query_stride = -64; }), name + "q" + strides);
}

/// 7 blocks on each of three ranks.
TEST(ShareInputs, PatternsAreBandsOfAllBlocksAndTheSame) {
  const auto said = [](const Pattern& pattern, const Pattern& others) {
    std::string first;
    mhla::distributed::run_ranks(3, [&](ThreadRank& rank) {
      ShareArguments a;
      a.pattern = rank.rank() == 1 ? pattern : others;
      const std::string text = message_of<mhla::error>([&] { a.agree(rank); });
      if (rank.rank() == 0) first = text;
    });
    return first;
  };
  const Pattern band(21, 21, 2, 3);
  const std::string name = "mhla::cuda::distributed: ";
  EXPECT_EQ(said(band, band), "no exception");
  EXPECT_EQ(said({}, band), name + "pattern has rows 0 on rank 1, expected 21 as on rank 0");
  EXPECT_EQ(said(Pattern(21, 22, 2, 3), band),
            name + "pattern has columns 22 on rank 1, expected 21 as on rank 0");
  EXPECT_EQ(said(Pattern(21, 21, 1, 3), band),
            name + "pattern has rows of column 0 2 on rank 1, expected 3 as on rank 0");
  EXPECT_EQ(said(Pattern(21, 21, 2, 2), band),
            name + "pattern has columns of row 0 3 on rank 1, expected 4 as on rank 0");
  const Pattern small(20, 21, 2, 3), lists(21, std::vector<std::vector<Index>>(21));
  EXPECT_EQ(said(small, small), name + "pattern has shape [20, 21], expected [21, 21]");
  EXPECT_EQ(said(lists, band), name + "arguments were refused on rank 1 (" + name +
                                   "pattern has lists of blocks, expected a band), expected what "
                                   "every rank takes");
}

TEST(ShareInputs, EveryRankReadsSomeBlocks) {
  const mhla::cuda::detail::RankBlocks counts{TokenBlocks(1, 1, 8, 1, 1, 1),
                                              TokenBlocks(1, 1, 3, 1, 1, 1)};
  EXPECT_EQ(message_of<mhla::option_error>([&] {
              mhla::cuda::detail::make_share("f", std::vector{counts, counts}, 0, false,
                                             Pattern(16, 6, 1, 1));
            }),
            "mhla::f: pattern has no coefficient for the queries of rank 1, expected at least one "
            "per rank");
}

TEST(ShareInputs, AllRanksRefuseAGridInACausalFormOfOne) {
  std::array<std::string, 3> said;
  mhla::distributed::run_ranks(3, [&](ThreadRank& rank) {
    ShareArguments a;
    if (rank.rank() == 1) a.blocks = mhla::cuda::grid({10, 10}, {4, 4});
    said[static_cast<std::size_t>(rank.rank())] =
        message_of<mhla::error>([&] { a.agree<true>(rank); });
  });
  const std::string refusal =
      "mhla::cuda::distributed_causal: blocks are of a grid, expected runs of consecutive tokens: "
      "contiguous()";
  EXPECT_EQ(said[1], refusal);
  EXPECT_EQ(said[0], "mhla::cuda::distributed_causal: arguments were refused on rank 1 (" +
                         refusal + "), expected what every rank takes");
  EXPECT_EQ(said[2], said[0]);
}

TEST(ShareInputs, AllRanksCallTheSameForm) {
  mhla::distributed::run_ranks(2, [&](ThreadRank& rank) {
    const ShareArguments a;
    const std::string said = message_of<mhla::option_error>([&] {
      if (rank.rank() == 0) a.agree<true>(rank);
      if (rank.rank() == 1) a.agree<false>(rank);
    });
    EXPECT_TRUE(
        said.ends_with("ranks call cuda::distributed on rank 1, expected "
                       "cuda::distributed_causal as on rank 0"))
        << said;
  });
}

/// Every choice of the operator is compared.
TEST(ShareInputs, OperatorsMustBeTheSame) {
  using mhla::cuda::FeatureMap;
  const std::function<void(Operator&)> changes[] = {
      [](Operator& op) { op.query_map = FeatureMap::identity(); },
      [](Operator& op) { op.query_map = FeatureMap::relu(1); },
      [](Operator& op) { op.key_map = FeatureMap::elu_plus_one(); },
      [](Operator& op) { op.denominator = mhla::cuda::Denominator::kNone; },
      [](Operator& op) { op.eps = 1; },
      [](Operator& op) { op.scale = 0.5f; },
      [](Operator& op) { op.summaries = mhla::cuda::Precision::kPair; }};
  for (const auto& change : changes) {
    const std::string said = refusal([&](ShareArguments& a) { change(a.op); });
    EXPECT_TRUE(said.starts_with("mhla::cuda::distributed: op has other ")) << said;
    EXPECT_TRUE(said.ends_with(" on rank 1, expected the same as on rank 0")) << said;
  }
}

TEST(ShareInputs, BlocksAreFewerThanTheKernelsCanCount) {
  std::vector<mhla::cuda::detail::RankBlocks> ranks(
      2, {TokenBlocks(), TokenBlocks(1, 1, 1 << 30, 1, 1, 1)});
  EXPECT_EQ(message_of<mhla::option_error>(
                [&] { mhla::cuda::detail::make_share("cuda::distributed", ranks, 0, false, {}); }),
            "mhla::cuda::distributed: blocks are 2^31 and more, expected fewer");
}

}  // namespace
