#pragma once

/// \file
/// The arguments of a form over ranks: each rank checks its own, and all compare
/// (distributed/agreement.hpp), so that all are refused, or none is.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/error.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/share.cuh"
#include "mhla/distributed/agreement.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/route.hpp"
#include "mhla/policy/pattern.hpp"

namespace mhla::cuda::detail {

/// Names in errors.
template <bool kCausal>
inline constexpr const char* kDistributed =
    kCausal ? "cuda::distributed_causal" : "cuda::distributed";

/// What must be alike on all ranks.
template <int D, int E, DeviceScalar T>
void state(mhla::detail::Facts& facts, const Problem& problem, const Pattern& pattern) {
  using mhla::detail::Fingerprint;
  const auto bits = [](const FeatureMap& map) {
    return Fingerprint().add(map.floor).add(map.eps).add(map.exponential);
  };
  const Operator& op = problem.op;
  facts.add("q", "sequences", problem.batch);
  facts.add("q", "heads", problem.heads);
  facts.add("q", "width", D);
  facts.add("v", "width", E);
  facts.add_bits("q", "type", Fingerprint().add(std::same_as<T, Eigen::half>));
  facts.add_bits("op", "query map", bits(op.query_map));
  facts.add_bits("op", "key map", bits(op.key_map));
  facts.add_bits("op", "denominator, eps or scale",
                 Fingerprint().add(op.denominator).add(op.eps).add(op.scale));
  facts.add_bits("op", "precision of summaries", Fingerprint().add(op.summaries));
  facts.add_bits("gain", "presence or norm_eps",
                 Fingerprint().add(problem.norm.normed).add(problem.norm.eps));
  facts.add("pattern", "rows", pattern.rows());
  facts.add("pattern", "columns", pattern.cols());
  facts.add("pattern", "rows of column 0", pattern.last_row(0));
  facts.add("pattern", "columns of row 0", pattern.last(0));
}

/// A rank's blocks.
struct ShareCounts {
  std::int32_t query_blocks;
  std::int32_t key_blocks;
  std::array<std::int32_t, 3> keys;   ///< along frames, rows and columns
  std::array<std::int32_t, 3> block;  ///< likewise those of a key block
};

inline ShareCounts counts_of(const Problem& problem) {
  const TokenBlocks& keys = problem.key_blocks;
  return {problem.query_blocks.blocks(),
          keys.blocks(),
          {keys.frames(), keys.rows(), keys.columns()},
          {keys.block_frames(), keys.block_rows(), keys.block_columns()}};
}

/// W, the tokens of a key block that is not short.
/// \throws option_error where a rank's key blocks have another size, but where a single one, which
///         may be short, is all that it has along an axis.
inline std::int32_t slots_of_all(const char* function, std::span<const ShareCounts> ranks) {
  std::array<std::int32_t, 3> largest{};
  for (const ShareCounts& rank : ranks) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      largest[axis] = std::max(largest[axis], rank.block[axis]);
    }
  }
  const auto text = [](const auto& x) { return shape_text({x[0], x[1], x[2]}); };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const std::int32_t size = ranks[r].block[axis];
      if (size == largest[axis] || size == ranks[r].keys[axis]) continue;
      fail_option(function, "key_blocks",
                  "have " + text(ranks[r].block) + " tokens on rank " + std::to_string(r),
                  text(largest) + ", the largest");
    }
  }
  return largest[0] * largest[1] * largest[2];
}

/// Columns that a rank's rows read, and in a causal form those of its own blocks.
inline mhla::detail::ColumnSpan columns_of(const Share& share, const Pattern& pattern, Index rank,
                                           bool causal) {
  const auto rows = mhla::detail::share_of(share.query_blocks, rank);
  const Index end = causal ? rows.first + rows.count : share.key_blocks.back();
  const auto of_row = [&](Index i) {
    return mhla::detail::readable(pattern, i, mhla::detail::Reach::kAll, end);
  };
  return {of_row(rows.first).begin, of_row(rows.first + rows.count - 1).end};
}

/// \param pattern  of the matrix; all coefficients where it has no rows
/// \throws option_error unless key blocks are of one size, blocks fewer than 2^31, and all ranks'
///         queries read some; shape_error for a pattern of other blocks
inline Share make_share(const char* function, std::span<const ShareCounts> ranks, Index rank,
                        bool causal, Pattern pattern) {
  using mhla::detail::Reach;
  Share share{{0}, {0}, rank, summary_scale(slots_of_all(function, ranks)), {}, {}};
  for (const ShareCounts& counts : ranks) {
    share.query_blocks.push_back(share.query_blocks.back() + counts.query_blocks);
    share.key_blocks.push_back(share.key_blocks.back() + counts.key_blocks);
  }
  const Index queries = share.query_blocks.back(), keys = share.key_blocks.back();
  if (std::max(queries, keys) > std::numeric_limits<std::int32_t>::max()) {
    fail_option(function, "blocks", "are 2^31 and more", "fewer");
  }
  if (pattern.rows() == 0) pattern = Pattern(queries, keys);
  expect_size(function, "pattern", pattern.rows(), pattern.cols(), queries, keys, causal);
  for (Index r = 0; r < std::ssize(ranks); ++r) {
    const auto columns = columns_of(share, pattern, r, causal);
    if (columns.begin == columns.end) {
      fail_option(function, "pattern", "has nothing for the queries of rank " + std::to_string(r),
                  "some blocks that they read");
    }
    if (r == rank) share.columns = columns;
  }
  share.route = mhla::detail::summary_route(pattern, causal ? Reach::kEarlier : Reach::kAll,
                                            share.query_blocks, share.key_blocks, rank);
  return share;
}

/// A rank's part, and how it is computed.
struct PlannedShare {
  Problem problem;
  Share share;
  Plan plan;
};

/// \throws shape_error, option_error on all ranks if one's arguments are refused, or if they
/// differ;
///         communication_error
template <int D, int E, bool kCausal, DeviceScalar T, distributed::Communicator Ranks>
PlannedShare agree_on_share(Ranks& ranks, const Inputs<T>& in, const TokenBlocks& query_blocks,
                            const TokenBlocks& key_blocks, const Operator& op, TensorView<T> out,
                            const Device& device, const Pattern& pattern) {
  const char* const name = kDistributed<kCausal>;
  PlannedShare own{};
  mhla::detail::agree(ranks, name, [&](mhla::detail::Facts& facts) {
    if (op.denominator == Denominator::kCrossQuery) {
      fail_option(name, "op", "has a cross-query denominator", "none or key sums");
    }
    own.problem = make_problem<D, E>(name, in, query_blocks, key_blocks, kCausal, op, out);
    if (pattern.sparse()) fail_option(name, "pattern", "has lists of blocks", "a band");
    state<D, E, T>(facts, own.problem, pattern);
  });
  const ShareCounts counts = counts_of(own.problem);
  std::vector<ShareCounts> all(static_cast<std::size_t>(ranks.size()));
  ranks.agree(std::as_bytes(std::span(&counts, 1)), std::as_writable_bytes(std::span(all)));
  own.share = make_share(name, all, ranks.rank(), kCausal, pattern);
  own.plan = share_plan<D, E>(own.problem, own.share, device);
  return own;
}

}  // namespace mhla::cuda::detail
