#pragma once

/// \file
/// Shares of a problem on ranks (launch/share.cuh), run in the emulator and compared with the whole
/// problem on one device.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "mhla/cuda/attention/share_inputs.cuh"
#include "mhla/cuda/launch/share.cuh"
#include "mhla/distributed/plan.hpp"
#include "mhla/distributed/thread_ranks.hpp"
#include "support/counted_rank.hpp"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/random_call.hpp"

namespace cuda_test {

using mhla::Index, mhla::Pattern;
using mhla::cuda::Arch, mhla::cuda::Device, mhla::cuda::Plan, mhla::cuda::Problem;
using mhla::cuda::Denominator, mhla::cuda::Precision, mhla::cuda::TokenBlocks;
using mhla::cuda::Share, mhla::cuda::HeadGroup;
using mhla::cuda::detail::RankBlocks;
using mhla::distributed::PeerRows;
using mhla::distributed::SharedRows;
using mhla::distributed::ThreadRank;
using mhla::test::CountedRank;

/// Frames of queries and of keys per rank (for a sequence, tokens).
struct Split {
  std::vector<int> queries, keys;
};

/// A range along the first axis of a grid that is longer than 1.
struct Range {
  TokenBlocks blocks;
  std::int64_t first_token;
};
inline Range range_of(const TokenBlocks& all, int begin, int length) {
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

/// The part of the problem on a rank.
inline Problem part_of(const Problem& whole, const Split& split, std::size_t rank) {
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

/// Blocks that ranks compare, without their tensors.
inline std::vector<RankBlocks> blocks_of_ranks(const Problem& whole, const Split& split) {
  std::vector<RankBlocks> ranks;
  for (std::size_t r = 0; r < split.keys.size(); ++r) {
    const Problem part = part_of(whole, split, r);
    ranks.push_back({part.query_blocks, part.key_blocks});
  }
  mhla::cuda::detail::give_one_size("share_test", "keys", ranks, &RankBlocks::keys);
  mhla::cuda::detail::give_one_size("share_test", "queries", ranks, &RankBlocks::queries);
  return ranks;
}

/// Rows that the CPU's form of the call would receive.
inline Index rows_of_plan(const Share& share, const Pattern& pattern, bool causal) {
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

/// A transfer, a rank and a stream that log the work in the stream: k is a kernel, t a transfer, w
/// a wait of kernels for a transfer.
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

/// A rank's memory of a call, as its kernels may read and write it. Summaries that are not received
/// stay NaN.
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
  mhla::cuda::SharePlan plan = mhla::cuda::share_plan<D, E>(part, share, target);
  EXPECT_EQ(plan.group.batch * plan.group.heads, part.pairs());  // few bytes: one transfer
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
  EXPECT_EQ(stream.early_launches(), groups);  // mixing follows a transfer
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
  if (ahead + share.queries().count <= 64) {  // more rows read summaries again, from L2
    EXPECT_LE(static_cast<double>(moved), 1.05 * static_cast<double>(plan.traffic.summaries));
  }
}

/// Expects that the ranks of a split write the bits of three stages on one device.
template <class T, int D, int E, bool kCausal = false>
void check_split(CallShape shape, const Split& split, Arch arch, const Pattern& pattern = {},
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

}  // namespace cuda_test
