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
#include <vector>

#include "mhla/cuda/attention/share_inputs.cuh"
#include "mhla/distributed/thread_ranks.hpp"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/random_call.hpp"

namespace cuda_test {
namespace {

using mhla::Index;
using mhla::cuda::Arch, mhla::cuda::Device, mhla::cuda::Plan, mhla::cuda::Problem;
using mhla::cuda::Denominator, mhla::cuda::Precision, mhla::cuda::TokenBlocks;
using mhla::cuda::Share;
using mhla::distributed::SharedRows;
using mhla::distributed::ThreadRank;

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
Share share_of(const Problem& whole, const Split& split, std::size_t rank) {
  std::vector<mhla::cuda::detail::ShareCounts> ranks;
  for (std::size_t r = 0; r < split.keys.size(); ++r) {
    ranks.push_back(mhla::cuda::detail::counts_of(part_of(whole, split, r)));
  }
  return mhla::cuda::detail::make_share(ranks, rank);
}

/// A rank's memory of a call: what its kernels may read and write.
template <int D, int E, class T>
void run_rank(Call<T>& call, const Problem& whole, const Split& split, Arch arch,
              ThreadRank& rank) {
  using emulator::Access;
  const auto r = static_cast<std::size_t>(rank.rank());
  const Problem part = part_of(whole, split, r);
  const Share share = share_of(whole, split, r);
  const Device target{arch, 2};
  const Plan plan = mhla::cuda::share_plan<D, E>(part, share, target);
  EXPECT_EQ(plan.summary, arch);
  EXPECT_EQ(plan.read_out, arch);
  Array<unsigned char> workspace(static_cast<std::int64_t>(plan.workspace_bytes));
  emulator::Device device(static_cast<unsigned>(r));
  device.track("q", call.q.raw(), call.q.bytes(), Access::kRead);
  device.track("k", call.k.raw(), call.k.bytes(), Access::kRead);
  device.track("v", call.v.raw(), call.v.bytes(), Access::kRead);
  device.track("mixing", call.mixing.raw(), call.mixing.bytes(), Access::kRead);
  device.track("o", call.o.raw(), call.o.bytes(), Access::kWrite);
  device.track("workspace", workspace.data(), plan.workspace_bytes, Access::kReadWrite);
  const EmulatedStream stream(device);
  mhla::cuda::run_share<T, D, E>(plan, part, share, {call.mixing.data(), whole.key_blocks.blocks()},
                                 workspace.data(), target, stream, rank);
  EXPECT_EQ(stream.early_launches(), 1);  // the mixing follows a transfer
  std::uint64_t moved = 0;
  for (const emulator::Report& report : stream.reports()) {
    moved += report.bytes_read("workspace") + report.bytes_written("workspace");
    EXPECT_EQ(report.bank_conflicts, 0u);
  }
  if (part.query_blocks.blocks() <= 64) {  // more read summaries again, from the second cache
    EXPECT_LE(static_cast<double>(moved), 1.05 * static_cast<double>(plan.traffic.summaries));
  }
}

template <class T, int D, int E>
void check(const CallShape& shape, const Split& split, Arch arch) {
  SCOPED_TRACE(std::to_string(split.keys.size()) + " ranks, D " + std::to_string(D) +
               (arch == Arch::kSm80 ? ", sm_80" : ", sm_90a"));
  Call<T> whole = random_call<T, D, E>(shape, 1);
  Call<T> parts = random_call<T, D, E>(shape, 1);
  const Device target{arch, 2};
  const Plan plan = mhla::cuda::detail::planned<D, E>(problem_of(whole), target,
                                                      mhla::cuda::Form::kThreeStage, "");
  run_and_compare<D, E>(whole, plan, target, 1);
  const Problem problem = problem_of(parts);
  mhla::distributed::run_ranks(static_cast<Index>(split.keys.size()), [&](ThreadRank& rank) {
    run_rank<D, E>(parts, problem, split, arch, rank);
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

TEST(Shares, RowsAreThoseOfAllPairs) {
  unsigned char bytes[4] = {};
  float sums[2] = {};
  Problem problem{};
  problem.batch = 2;
  problem.heads = 3;
  const Share share{{0, 4, 5}, 0, 1, 1};
  const mhla::cuda::SummaryArray all{bytes, bytes + 1, sums};
  for (const Precision precision : {Precision::kSingle, Precision::kPair}) {
    for (const Denominator denominator : {Denominator::kKeySum, Denominator::kNone}) {
      problem.op.summaries = precision;
      problem.op.denominator = denominator;
      mhla::cuda::SummaryArray arrays = all;
      if (denominator == Denominator::kNone) arrays.key_sum = nullptr;
      std::uint64_t row_bytes = 0;
      for (const SharedRows& rows : mhla::cuda::shared_rows<72, 72>(problem, share, arrays)) {
        row_bytes += rows.row_bytes;
      }
      EXPECT_EQ(row_bytes, (mhla::cuda::shared_bytes<72, 72>(problem)));
    }
  }
  EXPECT_EQ((mhla::cuda::shared_bytes<72, 72>(problem)), 6u * 4 * 72 * 72);
}

}  // namespace
}  // namespace cuda_test
