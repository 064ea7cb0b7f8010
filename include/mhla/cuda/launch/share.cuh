#pragma once

/// \file
/// One rank's share of a problem whose blocks are split over several ranks. It has three stages,
/// with a transfer after the first:
///
///     summary -> rows of summaries from other ranks -> mixing -> read_out, or causal_read_out
///
/// for groups of heads. While summaries of one group are in flight, kernels compute summaries of
/// the next groups and outputs of the groups that have arrived.
///
/// A pair's summaries are in one array of the blocks of all ranks, in rank order, as on one device.
/// Tiles of the matrix are those of the whole matrix. Mixtures and outputs therefore have the bits
/// of three stages on one device.

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

/// Positions of all ranks' blocks, and the summaries that are sent.
struct Share {
  mhla::detail::Borders query_blocks;
  mhla::detail::Borders key_blocks;
  Index rank;
  mhla::detail::ColumnSpan columns;  ///< columns of the matrix that this rank's rows read
  mhla::detail::Route route;

  /// Blocks of this rank.
  mhla::detail::BlockShare queries() const { return mhla::detail::share_of(query_blocks, rank); }
  mhla::detail::BlockShare keys() const { return mhla::detail::share_of(key_blocks, rank); }
};

/// Summaries as arrays with one row per key block of all ranks. Each pair has an array of high
/// parts, one of low parts (Precision::kPair) and one of key sums.
template <int D, int E>
std::vector<distributed::SharedRows> shared_rows(const Problem& problem,
                                                 const SummaryArray& summaries) {
  std::vector<distributed::SharedRows> rows;
  const auto add = [&](void* array, std::size_t row_bytes, std::int64_t first) {
    rows.push_back(
        {static_cast<std::byte*>(array) + static_cast<std::size_t>(first) * row_bytes, row_bytes});
  };
  for (std::int32_t pair = 0; pair < problem.pairs(); ++pair) {
    const std::int64_t first = summaries.first(pair, summaries.capacity);
    add(summaries.high, 2 * D * E, first);
    if (problem.op.summaries == Precision::kPair) add(summaries.low, 2 * D * E, first);
    if (summaries.key_sum != nullptr) add(summaries.key_sum, 4 * D, first);
  }
  return rows;
}

/// Bytes of the rows of shared_rows(): per block, for all pairs.
template <int D, int E>
constexpr std::uint64_t shared_bytes(const Problem& problem) {
  const std::uint64_t parts = problem.op.summaries == Precision::kPair ? 2 : 1;
  const std::uint64_t key_sum = problem.op.denominator == Denominator::kKeySum ? 4 * D : 0;
  return static_cast<std::uint64_t>(problem.pairs()) * (parts * (2 * D * E) + key_sum);
}

namespace detail {

/// Heads whose summaries are sent together. All ranks compute the same group.
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

/// First column of a rank's part of the matrix, rounded down to a tile.
inline std::int32_t first_column(const Share& share) {
  return static_cast<std::int32_t>(share.columns.begin / MixingParameters::kTile *
                                   MixingParameters::kTile);
}

/// Scratch sizes of a pair on a rank: summaries of all blocks, mixtures of all rows that are made.
template <int D, int E>
StageScratch scratch_of(const Problem& problem, const Share& share, const Device& device) {
  const auto first = static_cast<std::int32_t>(share.queries().first);
  const std::int32_t rows = rows_ahead(problem, first) + problem.query_blocks.blocks();
  const auto columns = static_cast<std::int32_t>(share.columns.end) - first_column(share);
  return {static_cast<std::int32_t>(share.key_blocks.back()), rows,
          rounded_coefficients<D, E>(rows, columns, problem, device)};
}

/// Mixing stage of a rank's queries, over the columns that they read, from a whole tile on.
struct RankMixing {
  Problem problem;  ///< its key blocks are those columns
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

/// Plan of a rank's share.
struct SharePlan : Plan {
  HeadGroup group;  ///< heads whose summaries are sent together
};

/// Plans a rank's share as for one device, but always in three stages. The workspace holds the
/// summaries of all ranks.
template <int D, int E>
SharePlan share_plan(const Problem& problem, const Share& share, const Device& device) {
  SharePlan plan{detail::planned<D, E>(problem, device, Form::kThreeStage,
                                       "the summaries of other ranks are needed"),
                 detail::transfer_group<D, E>(problem, share)};
  const StageScratch scratch = detail::scratch_of<D, E>(problem, share, device);
  plan.workspace_bytes = workspace_parts<D, E>(problem, scratch).bytes;
  const Index read = share.keys().count + share.route.rows_received();
  plan.traffic.summaries =
      detail::mixed_bytes<D, E>(problem, static_cast<std::int32_t>(read), scratch.mixtures);
  return plan;
}

/// Launches the kernels of a rank's share into a stream, and sends its summaries to other ranks.
/// \tparam kCausal  problem.causal
/// \param plan     `share_plan(problem, share, device)`; its groups are those of all ranks.
/// \param mixing   Coefficients of all blocks.
/// \param ranks    Transfers begin after earlier work in the stream, and later work waits for them.
template <class T, int D, int E, bool kCausal, class Stream, distributed::Communicator Ranks>
void run_share(const SharePlan& plan, const Problem& problem, const Share& share,
               MixingArray mixing, unsigned char* workspace, const Device& device,
               const Stream& stream, Ranks& ranks) {
  const StageScratch scratch = detail::scratch_of<D, E>(problem, share, device);
  const WorkspaceArrays all = workspace_arrays<D, E>(problem, scratch, workspace);
  const auto for_groups = [&](const auto& visit) {
    std::int64_t before = 0;  // pairs of earlier groups
    for_parts(problem, plan.group, [&](const Problem& part) {
      WorkspaceArrays arrays = all;
      arrays.summaries = all.summaries.from<D, E>(before * scratch.summaries);
      arrays.mixtures = all.mixtures.from<D, E>(before * scratch.mixtures);
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
      const detail::RankMixing rank_mixing(part, share, mixing);
      detail::run_outputs<T, D, E, P, kCausal>(plan, rank_mixing.problem, rank_mixing.matrix,
                                               arrays, device, stream, Start::kInOrder);
    });
  };
  if (problem.op.summaries == Precision::kPair) {
    run_all.template operator()<Precision::kPair>();
  } else {
    run_all.template operator()<Precision::kSingle>();
  }
}

}  // namespace mhla::cuda
