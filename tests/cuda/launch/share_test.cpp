// Parts of a problem on ranks, run in the emulation: outputs have the bits of three stages on one
// device, whatever the split.

#include "mhla/cuda/launch/share.cuh"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "mhla/cuda/attention/share_inputs.cuh"
#include "mhla/distributed/plan.hpp"
#include "mhla/distributed/thread_ranks.hpp"
#include "support/counted_rank.hpp"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/random_call.hpp"
#include "support/random.hpp"

namespace cuda_test {
namespace {

using mhla::Index, mhla::Pattern;
using mhla::cuda::Arch, mhla::cuda::Device, mhla::cuda::Plan, mhla::cuda::Problem;
using mhla::cuda::Denominator, mhla::cuda::Precision, mhla::cuda::TokenBlocks;
using mhla::cuda::Share, mhla::cuda::HeadGroup;
using mhla::cuda::detail::RankBlocks;
using mhla::distributed::PeerRows;
using mhla::distributed::SharedRows;
using mhla::distributed::ThreadRank;
using mhla::test::CountedRank;

/// Frames of queries and of keys (of a sequence: tokens) that each rank has.
struct Split {
  std::vector<int> queries, keys;
};

/// A range along the first axis of a grid that is longer than 1.
struct Range {
  TokenBlocks blocks;
  std::int64_t first_token;
};
Range range_of(const TokenBlocks& all, int begin, int length) {
  const auto least = [](int a, int b) { return a < b ? a : b; };
  const int frames = all.frames(), rows = all.rows(), columns = all.columns();
  if (frames > 1) {
    return {TokenBlocks(length, rows, columns, least(all.block_frames(), length), all.block_rows(),
                        all.block_columns()),
            std::int64_t{begin} * rows * columns};
  }
  if (rows > 1) {
    return {
        TokenBlocks(1, length, columns, 1, least(all.block_rows(), length), all.block_columns()),
        std::int64_t{begin} * columns};
  }
  return {TokenBlocks(1, 1, length, 1, 1, least(all.block_columns(), length)), begin};
}

/// The part of a rank.
Problem part_of(const Problem& whole, const Split& split, std::size_t rank) {
  const auto before = [rank](const std::vector<int>& lengths) {
    return std::accumulate(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(rank), 0);
  };
  const Range queries = range_of(whole.query_blocks, before(split.queries), split.queries[rank]);
  const Range keys = range_of(whole.key_blocks, before(split.keys), split.keys[rank]);
  Problem part = whole;
  part.q.data += queries.first_token * part.q.token_stride;
  part.o.data += queries.first_token * part.o.token_stride;
  part.k.data += keys.first_token * part.k.token_stride;
  part.v.data += keys.first_token * part.v.token_stride;
  part.query_blocks = queries.blocks;
  part.key_blocks = keys.blocks;
  return part;
}

/// What ranks agree on, without their tensors.
std::vector<RankBlocks> blocks_of_ranks(const Problem& whole, const Split& split) {
  std::vector<RankBlocks> ranks;
  for (std::size_t r = 0; r < split.keys.size(); ++r) {
    const Problem part = part_of(whole, split, r);
    ranks.push_back({part.query_blocks, part.key_blocks});
  }
  mhla::cuda::detail::give_one_size("share_test", "keys", ranks, &RankBlocks::keys);
  mhla::cuda::detail::give_one_size("share_test", "queries", ranks, &RankBlocks::queries);
  return ranks;
}

/// The rows that the CPU's form of that call would receive.
Index rows_of_plan(const Share& share, const Pattern& pattern, bool causal) {
  if (pattern.rows() == 0) {
    return rows_of_plan(share, Pattern(share.query_blocks.back(), share.key_blocks.back()), causal);
  }
  const mhla::distributed::HeadWidths head{64, 64};
  return causal ? mhla::distributed::causal_plan<float>(pattern, share.key_blocks, share.rank, head)
                      .received
                : mhla::distributed::bidirectional_plan<float>(pattern, share.query_blocks,
                                                               share.key_blocks, share.rank, head)
                      .received;
}

/// A transfer, a rank and a stream that note what comes into the stream: k a kernel, t a transfer,
/// w that kernels wait for one.
template <class X>
struct LoggedTransfer {
  X transfer;
  std::string* log;

  bool done() { return transfer.done(); }
  void wait() {
    *log += 'w';
    transfer.wait();
  }
};
struct LoggedRank : CountedRank<ThreadRank> {
  LoggedRank(ThreadRank& rank, std::string& text) : CountedRank(rank), log(&text) {}

  auto all_gather(std::span<const SharedRows> arrays, std::span<const Index> first) {
    *log += 't';
    return LoggedTransfer{CountedRank::all_gather(arrays, first), log};
  }
  auto exchange(std::span<const SharedRows> arrays, std::span<const PeerRows> sends,
                std::span<const PeerRows> receives) {
    *log += 't';
    return LoggedTransfer{CountedRank::exchange(arrays, sends, receives), log};
  }
  std::string* log;
};
struct LoggedStream : EmulatedStream {
  LoggedStream(emulator::Device& device, std::string& text) : EmulatedStream(device), log(&text) {}

  template <class Kernel>
  void run(const typename Kernel::Params& parameters, std::int32_t pairs,
           mhla::cuda::Start start = mhla::cuda::Start::kInOrder) const {
    *log += 'k';
    EmulatedStream::run<Kernel>(parameters, pairs, start);
  }
  std::string* log;
};

/// A rank's memory of a call: what its kernels may read and write. What does not come is NaN.
template <int D, int E, bool kCausal, class T>
void run_rank(Call<T>& call, const Problem& whole, const Split& split, const Pattern& pattern,
              Arch arch, int groups, ThreadRank& rank) {
  using emulator::Access;
  const auto r = static_cast<std::size_t>(rank.rank());
  const std::vector<RankBlocks> blocks = blocks_of_ranks(whole, split);
  Problem part = part_of(whole, split, r);
  part.query_blocks = blocks[r].queries;
  part.key_blocks = blocks[r].keys;
  const Share share =
      mhla::cuda::detail::make_share("share_test", blocks, rank.rank(), kCausal, pattern);
  const Device target{arch, 2};
  Plan plan = mhla::cuda::share_plan<D, E>(part, share, target);
  EXPECT_EQ(plan.group.batch * plan.group.heads, part.pairs());  // so few bytes in one piece
  plan.group = groups < part.batch ? HeadGroup{(part.batch + groups - 1) / groups, part.heads}
                                   : HeadGroup{1, part.pairs() / groups};
  EXPECT_EQ(plan.summary, arch);
  EXPECT_EQ(plan.read_out, kCausal && D == 72 ? Arch::kSm80 : arch);
  Array<unsigned char> workspace(static_cast<std::int64_t>(plan.workspace_bytes));
  std::memset(workspace.data(), 0xFF, plan.workspace_bytes);
  emulator::Device device(static_cast<unsigned>(r));
  device.track("q", call.q.raw(), call.q.bytes(), Access::kRead);
  device.track("k", call.k.raw(), call.k.bytes(), Access::kRead);
  device.track("v", call.v.raw(), call.v.bytes(), Access::kRead);
  device.track("mixing", call.mixing.raw(), call.mixing.bytes(), Access::kRead);
  device.track("o", call.o.raw(), call.o.bytes(), Access::kWrite);
  device.track("workspace", workspace.data(), plan.workspace_bytes, Access::kReadWrite);
  std::string log, summaries, outputs;
  const LoggedStream stream(device, log);
  LoggedRank counted(rank, log);
  mhla::cuda::run_share<T, D, E, kCausal>(plan, part, share,
                                          {call.mixing.data(), whole.key_blocks.blocks()},
                                          workspace.data(), target, stream, counted);
  EXPECT_EQ(share.route.rows_received(), rows_of_plan(share, pattern, kCausal));
  EXPECT_EQ(static_cast<std::uint64_t>(counted.received),
            static_cast<std::uint64_t>(share.route.rows_received()) *
                (mhla::cuda::shared_bytes<D, E>(part)));
  EXPECT_EQ(stream.early_launches(), groups);  // the mixing follows a transfer
  for (int group = 0; group < groups; ++group) {
    summaries += "kt";
    outputs += "wkk";
  }
  EXPECT_EQ(log, summaries + outputs);
  std::uint64_t moved = 0;
  for (const emulator::Report& report : stream.reports()) {
    moved += report.bytes_read("workspace") + report.bytes_written("workspace");
    EXPECT_EQ(report.bank_conflicts, 0u);
  }
  const Index ahead = kCausal ? share.queries().first % 64 : 0;
  if (ahead + share.queries().count <= 64) {  // more read summaries again, from the second cache
    EXPECT_LE(static_cast<double>(moved), 1.05 * static_cast<double>(plan.traffic.summaries));
  }
}

template <class T, int D, int E, bool kCausal = false>
void check(CallShape shape, const Split& split, Arch arch, const Pattern& pattern = {},
           int groups = 1) {
  SCOPED_TRACE(std::to_string(split.keys.size()) + " ranks, D " + std::to_string(D) +
               (arch == Arch::kSm80 ? ", sm_80" : ", sm_90a") + (kCausal ? ", causal" : ""));
  shape.causal = kCausal;
  Call<T> whole = random_call<T, D, E>(shape, 1);
  Call<T> parts = random_call<T, D, E>(shape, 1);
  for (Index at = 0; pattern.rows() > 0 && at < whole.mixing.size(); ++at) {
    if (pattern.holds(at / pattern.cols(), at % pattern.cols())) continue;
    whole.mixing[at] = parts.mixing[at] = 0;
  }
  const Device target{arch, 2};
  const Plan plan = mhla::cuda::detail::planned<D, E>(problem_of(whole), target,
                                                      mhla::cuda::Form::kThreeStage, "");
  run_and_compare<D, E>(whole, plan, target, 1);
  const Problem problem = problem_of(parts);
  mhla::distributed::run_ranks(static_cast<Index>(split.keys.size()), [&](ThreadRank& rank) {
    run_rank<D, E, kCausal>(parts, problem, split, pattern, arch, groups, rank);
  });
  EXPECT_EQ(std::memcmp(whole.o.raw(), parts.o.raw(), whole.o.bytes()), 0);
}

constexpr Arch kArchs[] = {Arch::kSm80, Arch::kSm90a};

/// The last block is short, and alone on its rank in two of the splits.
TEST(Shares, SplitsOfASequenceHaveTheBitsOfOneDevice) {
  const CallShape shape{.heads = 2, .tokens = 17 * 16 + 5, .block = 16};
  const std::vector<int> lengths[] = {{277}, {80, 197}, {16, 128, 128, 5}, {256, 16, 5}};
  for (const Arch arch : kArchs) {
    for (const auto& tokens : lengths) {
      check<bfloat16, 64, 64>(shape, {tokens, tokens}, arch);
    }
  }
}

/// Blocks of more tokens than a kernel takes at once; the last one, short, is all that a rank has.
TEST(Shares, AShortBlockThatARankHasAloneIsCutAsTheOthersAre) {
  const CallShape shape{.heads = 1, .tokens = 2 * 210 + 100, .block = 210};
  CallShape image{.heads = 1, .tokens = {16, 21}, .block = {12, 7}, .layout = 2};
  for (const Arch arch : kArchs) {
    check<bfloat16, 64, 64>(shape, {{420, 100}, {420, 100}}, arch);
    check<half, 64, 64>(image, {{12, 4}, {12, 4}}, arch);
  }
}

/// While summaries of a group travel, kernels make those of the next, and the outputs of the last.
TEST(Shares, HeadsTravelInGroups) {
  const CallShape shape{.batch = 2, .heads = 4, .tokens = 9 * 8, .block = 8};
  CallShape pairs{.batch = 3, .heads = 1, .tokens = 9 * 8, .block = 8};
  pairs.op.summaries = Precision::kPair;
  const std::vector<int> tokens{24, 8, 40};
  for (const Arch arch : kArchs) {
    check<bfloat16, 64, 64>(shape, {tokens, tokens}, arch, {}, 4);
    check<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch, {}, 8);
    check<half, 72, 72>(pairs, {tokens, tokens}, arch, {}, 2);
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
        const Plan plan = mhla::cuda::share_plan<64, 64>(part, share, {Arch::kSm90a, 2});
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
  CallShape image{.heads = 1, .tokens = {23, 12}, .block = {4, 3}, .layout = 2};
  image.op.denominator = Denominator::kNone;
  for (const Arch arch : kArchs) {
    check<bfloat16, 64, 64>(video, {{2, 4}, {2, 4}}, arch);
    check<half, 72, 72>(image, {{4, 16, 3}, {4, 16, 3}}, arch);
  }
}

TEST(Shares, QueriesAndKeysHaveSplitsOfTheirOwn) {
  const CallShape shape{
      .heads = 2, .tokens = 120, .block = 30, .key_tokens = {20, 18}, .key_block = {4, 3}};
  for (const Arch arch : kArchs) {
    check<bfloat16, 128, 128>(shape, {{30, 60, 30}, {4, 4, 12}}, arch);
  }
}

/// More rows of m than a kernel takes at once, from a row in the middle of such a tile on.
TEST(Shares, ManyBlocksHaveTheBitsOfOneDevice) {
  const CallShape shape{.heads = 1, .tokens = 4 * 150, .block = 4};
  for (const Arch arch : kArchs) {
    check<bfloat16, 64, 64>(shape, {{4 * 17, 4 * 100, 4 * 33}, {4 * 17, 4 * 100, 4 * 33}}, arch);
  }
}

/// As above: a short block at the end, and alone on its rank.
TEST(Shares, CausalSplitsHaveTheBitsOfOneDevice) {
  const CallShape shape{.heads = 2, .tokens = 17 * 16 + 5, .block = 16};
  CallShape pairs{.heads = 1, .tokens = 5 * 80 + 3, .block = 80, .layout = 2};
  pairs.op.summaries = Precision::kPair;
  CallShape narrow{.batch = 2, .tokens = 9 * 8, .block = 8};
  narrow.op.denominator = Denominator::kNone;
  const std::vector<int> lengths[] = {{277}, {80, 197}, {16, 128, 128, 5}, {256, 16, 5}};
  for (const Arch arch : kArchs) {
    for (const auto& tokens : lengths) {
      check<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch);
    }
    check<half, 128, 128, true>(pairs, {{80, 160, 163}, {80, 160, 163}}, arch);
    check<bfloat16, 72, 72, true>(narrow, {{8, 40, 24}, {8, 40, 24}}, arch);
  }
}

/// Ranks that begin in the middle of a tile of the matrix, behind whole ones, and that have more
/// than one.
TEST(Shares, CausalRanksBeginAnywhereInTheMatrix) {
  const CallShape shape{.heads = 1, .tokens = 4 * 210, .block = 4};
  const std::vector<int> tokens{4 * 17, 4 * 47, 4 * 100, 4, 4 * 45};
  for (const Arch arch : kArchs) {
    check<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch);
  }
}

/// Columns of a rank that begin within a tile, behind whole ones, and that no rank before it has.
TEST(Shares, OnlyABandTravels) {
  const CallShape shape{.heads = 2, .tokens = 4 * 150, .block = 4};
  const std::vector<int> tokens{4 * 17, 4 * 100, 4 * 33};
  CallShape cross{.heads = 1, .tokens = 12 * 4, .block = 4, .key_tokens = 14 * 4, .key_block = 4};
  cross.op.summaries = Precision::kPair;
  for (const Arch arch : kArchs) {
    check<bfloat16, 64, 64>(shape, {tokens, tokens}, arch, Pattern(150, 150, 9, 20));
    check<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch, Pattern(150, 150, 12, 3));
    check<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch, Pattern(150, 150, 0, 0));
    check<half, 128, 128>(cross, {{16, 16, 16}, {16, 8, 32}}, arch, Pattern(12, 14, 1, 0));
  }
}

/// Any number of ranks, any split, any band, both forms.
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
      check<bfloat16, 64, 64>(shape, {tokens, tokens}, arch, pattern);
    } else {
      check<bfloat16, 64, 64, true>(shape, {tokens, tokens}, arch, pattern);
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
