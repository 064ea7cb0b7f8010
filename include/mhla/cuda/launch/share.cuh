#pragma once

/// \file
/// The part of a problem that one of several ranks computes, each of which has some blocks of the
/// sequence, in three stages with a transfer between the first two:
///
///     summary -> rows of summaries from all ranks -> mixing -> read_out
///
/// A pair's summaries lie in one array of the blocks of all ranks, in the order of ranks, as one
/// device would have them: mixtures, and outputs, have the bits of three stages on one device.

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

namespace mhla::cuda {

/// Where a rank's blocks lie among those of all ranks.
struct Share {
  std::vector<Index> first_key_block;  ///< of each rank, and behind the last
  std::int32_t first_query_block;      ///< of this rank: its first row of the mixing matrix
  std::int32_t query_blocks;           ///< of all ranks
  float scale;                         ///< summary_scale of the largest block of all ranks

  std::int32_t key_blocks() const { return static_cast<std::int32_t>(first_key_block.back()); }
};

/// The summaries of all key blocks as arrays of which each rank has rows: of each pair the high
/// parts, the low parts of Precision::kPair, and the key sums.
template <int D, int E>
std::vector<distributed::SharedRows> shared_rows(const Problem& problem, const Share& share,
                                                 const SummaryArray& summaries) {
  std::vector<distributed::SharedRows> rows;
  const auto add = [&](void* array, std::size_t row_bytes, std::int64_t first) {
    rows.push_back(
        {static_cast<std::byte*>(array) + static_cast<std::size_t>(first) * row_bytes, row_bytes});
  };
  for (std::int32_t pair = 0; pair < problem.pairs(); ++pair) {
    const std::int64_t first = summaries.first(pair, share.key_blocks());
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

/// The problem behind the transfer: its own queries, and the key blocks of all ranks, of which only
/// their number counts.
inline Problem gathered(const Problem& problem, const Share& share) {
  Problem all = problem;
  all.key_blocks = TokenBlocks(1, 1, share.key_blocks(), 1, 1, 1);
  return all;
}

/// The part of an array of all blocks, from block `first` of each pair on.
template <int D, int E>
SummaryArray part_of(const SummaryArray& all, std::int64_t first, std::int32_t blocks) {
  return {all.high + first * (2 * D * E), all.low + first * (2 * D * E),
          all.key_sum != nullptr ? all.key_sum + first * D : nullptr, all.scale, blocks};
}

}  // namespace detail

/// How a rank's part is computed: what is planned for one device, but always in three stages. The
/// summaries of all ranks are in the workspace.
template <int D, int E>
Plan share_plan(const Problem& problem, const Share& share, const Device& device) {
  Plan plan = detail::planned<D, E>(problem, device, Form::kThreeStage,
                                    "the summaries of other ranks are needed");
  const Problem all = detail::gathered(problem, share);
  plan.workspace_bytes = workspace_parts<D, E>(all).bytes;
  plan.traffic.summaries = detail::traffic<D, E>(all, Form::kThreeStage).summaries;
  return plan;
}

/// Sends the kernels of a rank's part to a stream, and its summaries to the other ranks.
/// \param plan     share_plan(problem, share, device)
/// \param mixing   of all blocks
/// \param ranks    whose transfers begin after what the stream holds, and hold it up
template <class T, int D, int E, class Stream, distributed::Communicator Ranks>
void run_share(const Plan& plan, const Problem& problem, const Share& share, MixingArray mixing,
               unsigned char* workspace, const Device& device, const Stream& stream, Ranks& ranks) {
  const Problem all = detail::gathered(problem, share);
  WorkspaceArrays arrays = workspace_arrays<D, E>(all, workspace);
  arrays.summaries.scale = arrays.mixtures.scale = share.scale;
  WorkspaceArrays own = arrays;
  own.summaries = detail::part_of<D, E>(
      arrays.summaries, share.first_key_block[static_cast<std::size_t>(ranks.rank())],
      share.key_blocks());
  const MixingArray rows{mixing.row(share.first_query_block), mixing.stride};
  const auto run_all = [&]<Precision P>() {
    detail::run_summaries<T, D, E, P>(plan, summary_stage(problem, own), problem.pairs(), device,
                                      stream);
    ranks.all_gather(shared_rows<D, E>(problem, share, arrays.summaries), share.first_key_block)
        .wait();
    detail::run_outputs<T, D, E, P, false>(plan, all, rows, arrays, device, stream,
                                           Start::kInOrder);
  };
  if (problem.op.summaries == Precision::kPair) {
    run_all.template operator()<Precision::kPair>();
  } else {
    run_all.template operator()<Precision::kSingle>();
  }
}

}  // namespace mhla::cuda
