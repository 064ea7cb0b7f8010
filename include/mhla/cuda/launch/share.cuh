#pragma once

/// \file
/// The part of a problem that one of several ranks computes, each of which has some blocks of the
/// sequence, in three stages with a transfer between the first two:
///
///     summary -> rows of summaries from other ranks -> mixing -> read_out, or causal_read_out
///
/// for groups of heads: while summaries of one travel, kernels make those of the next ones, and the
/// outputs of those whose summaries are there.
///
/// A pair's summaries lie in one array of the blocks of all ranks, in the order of ranks, as one
/// device would have them, and tiles of the matrix that a causal form reads are those of the whole
/// one: mixtures, and outputs, have the bits of three stages on one device.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mhla/core/scalar.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/stages.cuh"
#include "mhla/cuda/launch/workspace.cuh"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/route.hpp"

namespace mhla::cuda {

/// Where the blocks of ranks lie among those of all, and which summaries travel.
struct Share {
  mhla::detail::Borders query_blocks;
  mhla::detail::Borders key_blocks;
  Index rank;
  mhla::detail::ColumnSpan columns;  ///< that this rank's rows of the matrix read
  mhla::detail::Route route;

  /// Of this rank.
  mhla::detail::BlockShare queries() const { return mhla::detail::share_of(query_blocks, rank); }
  mhla::detail::BlockShare keys() const { return mhla::detail::share_of(key_blocks, rank); }
};

/// Summaries as arrays with a row for each key block of all ranks: of each pair the high parts, the
/// low parts of Precision::kPair, and the key sums.
template <int D, int E>
std::vector<distributed::SharedRows> shared_rows(const Problem& problem,
                                                 const SummaryArray& summaries) {
  std::vector<distributed::SharedRows> rows;
  const auto add = [&](void* array, std::size_t row_bytes, std::int64_t first) {
    rows.push_back(
        {static_cast<std::byte*>(array) + static_cast<std::size_t>(first) * row_bytes, row_bytes});
  };
  for (std::int32_t pair = 0; pair < problem.pairs(); ++pair) {
    const std::int64_t first = summaries.first(pair, summaries.room);
    add(summaries.high, 2 * D * E, first);
    if (problem.op.summaries == Precision::kPair) add(summaries.low, 2 * D * E, first);
    if (summaries.key_sum != nullptr) add(summaries.key_sum, 4 * D, first);
  }
  return rows;
}

/// Bytes of those rows, of a block and all pairs.
template <int D, int E>
constexpr std::uint64_t shared_bytes(const Problem& problem) {
  const std::uint64_t parts = problem.op.summaries == Precision::kPair ? 2 : 1;
  const std::uint64_t key_sum = problem.op.denominator == Denominator::kKeySum ? 4 * D : 0;
  return static_cast<std::uint64_t>(problem.pairs()) * (parts * (2 * D * E) + key_sum);
}

namespace detail {

/// Heads whose summaries travel together: the same on all ranks, which know what it depends on.
template <int D, int E>
HeadGroup transfer_group(const Problem& problem, const Share& share) {
  const std::uint64_t ranks = share.key_blocks.size() - 1;
  const auto blocks = static_cast<std::uint64_t>(share.key_blocks.back());
  const auto transfers = static_cast<std::int32_t>(
      mhla::detail::transfers_of(shared_bytes<D, E>(problem) * blocks, ranks));
  const auto part = [](std::int32_t n, std::int32_t parts) { return (n + parts - 1) / parts; };
  if (problem.pairs() == 0 || transfers == 1) return {problem.batch, problem.heads};
  if (problem.batch >= transfers) return {part(problem.batch, transfers), problem.heads};
  return {1, part(problem.heads, part(transfers, problem.batch))};
}

/// The first column of a rank's part of the matrix: where a tile begins.
inline std::int32_t first_column(const Share& share) {
  return static_cast<std::int32_t>(share.columns.begin / MixingParameters::kTile *
                                   MixingParameters::kTile);
}

/// Of a pair on a rank: summaries of all blocks, mixtures of all rows that are made.
template <int D, int E>
Rooms rooms_of(const Problem& problem, const Share& share, const Device& device) {
  const auto first = static_cast<std::int32_t>(share.queries().first);
  const std::int32_t rows = rows_ahead(problem, first) + problem.query_blocks.blocks();
  const auto columns = static_cast<std::int32_t>(share.columns.end) - first_column(share);
  return {static_cast<std::int32_t>(share.key_blocks.back()), rows,
          rounded_coefficients<D, E>(rows, columns, problem.op.summaries, device)};
}

/// The mixing of a rank's queries, of the columns that they read, from a whole tile of them on.
struct RankMixing {
  Problem problem;  ///< whose key blocks are those columns
  MixingArray matrix;

  RankMixing(const Problem& whole, const Share& share, const MixingArray& all) {
    const auto row = static_cast<std::int32_t>(share.queries().first);
    const auto begin = static_cast<std::int32_t>(share.columns.begin);
    const std::int32_t tile = first_column(share);
    problem = with_key_blocks(whole, static_cast<std::int32_t>(share.columns.end) - tile);
    matrix = {all.row(row) + tile, all.stride, row - tile, begin - tile};
  }
};

}  // namespace detail

/// How a rank's part is computed.
struct SharePlan : Plan {
  HeadGroup group;  ///< whose summaries travel together
};

/// What is planned for one device, but always in three stages. In the workspace there is room for
/// the summaries of all ranks.
template <int D, int E>
SharePlan share_plan(const Problem& problem, const Share& share, const Device& device) {
  SharePlan plan{detail::planned<D, E>(problem, device, Form::kThreeStage,
                                       "the summaries of other ranks are needed"),
                 detail::transfer_group<D, E>(problem, share)};
  const Rooms rooms = detail::rooms_of<D, E>(problem, share, device);
  plan.workspace_bytes = workspace_parts<D, E>(problem, rooms).bytes;
  const Index read = share.keys().count + share.route.rows_received();
  plan.traffic.summaries =
      detail::mixed_bytes<D, E>(problem, static_cast<std::int32_t>(read), rooms.mixtures);
  return plan;
}

/// Sends the kernels of a rank's part to a stream, and its summaries to other ranks.
/// \tparam kCausal  problem.causal
/// \param plan     share_plan(problem, share, device); its groups are those of all ranks
/// \param mixing   of all blocks
/// \param ranks    whose transfers begin after what the stream holds, and hold it up
template <class T, int D, int E, bool kCausal, class Stream, distributed::Communicator Ranks>
void run_share(const SharePlan& plan, const Problem& problem, const Share& share,
               MixingArray mixing, unsigned char* workspace, const Device& device,
               const Stream& stream, Ranks& ranks) {
  const Rooms rooms = detail::rooms_of<D, E>(problem, share, device);
  const WorkspaceArrays all = workspace_arrays<D, E>(problem, rooms, workspace);
  const auto for_groups = [&](const auto& visit) {
    std::int64_t before = 0;  // pairs
    for_parts(problem, plan.group, [&](const Problem& part) {
      WorkspaceArrays arrays = all;
      arrays.summaries = all.summaries.from<D, E>(before * rooms.summaries);
      arrays.mixtures = all.mixtures.from<D, E>(before * rooms.mixtures);
      visit(part, arrays);
      before += part.pairs();
    });
  };
  const auto run_all = [&]<Precision P>() {
    std::vector<decltype(share.route.start(ranks, {}))> transfers;
    for_groups([&](const Problem& part, WorkspaceArrays arrays) {
      const std::vector<distributed::SharedRows> rows = shared_rows<D, E>(part, arrays.summaries);
      arrays.summaries = arrays.summaries.from<D, E>(share.keys().first);
      detail::run_summaries<T, D, E, P>(plan, summary_stage(part, arrays), part.pairs(), device,
                                        stream);
      transfers.push_back(share.route.start(ranks, rows));
    });
    auto transfer = transfers.begin();
    for_groups([&](const Problem& part, WorkspaceArrays arrays) {
      (transfer++)->wait();
      arrays.summaries = arrays.summaries.from<D, E>(share.columns.begin);
      const detail::RankMixing own(part, share, mixing);
      detail::run_outputs<T, D, E, P, kCausal>(plan, own.problem, own.matrix, arrays, device,
                                               stream, Start::kInOrder);
    });
  };
  if (problem.op.summaries == Precision::kPair) {
    run_all.template operator()<Precision::kPair>();
  } else {
    run_all.template operator()<Precision::kSingle>();
  }
}

}  // namespace mhla::cuda
