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

namespace mhla::cuda::detail {

inline constexpr const char* kDistributed = "cuda::distributed";

/// What must be alike on all ranks.
template <int D, int E, DeviceScalar T>
void state(mhla::detail::Facts& facts, const Problem& problem) {
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
inline std::int32_t slots_of_all(std::span<const ShareCounts> ranks) {
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
      fail_option(kDistributed, "key_blocks",
                  "have " + text(ranks[r].block) + " tokens on rank " + std::to_string(r),
                  text(largest) + ", the largest");
    }
  }
  return largest[0] * largest[1] * largest[2];
}

/// \throws option_error unless key blocks are of one size, and blocks fewer than 2^31.
inline Share make_share(std::span<const ShareCounts> ranks, std::size_t rank) {
  Share share{{0}, 0, 0, summary_scale(slots_of_all(ranks))};
  Index query_blocks = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (r == rank) share.first_query_block = static_cast<std::int32_t>(query_blocks);
    query_blocks += ranks[r].query_blocks;
    share.first_key_block.push_back(share.first_key_block.back() + ranks[r].key_blocks);
  }
  constexpr Index kLimit = std::numeric_limits<std::int32_t>::max();
  if (std::max(query_blocks, share.first_key_block.back()) > kLimit) {
    fail_option(kDistributed, "blocks", "are 2^31 and more", "fewer");
  }
  share.query_blocks = static_cast<std::int32_t>(query_blocks);
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
template <int D, int E, DeviceScalar T, distributed::Communicator Ranks>
PlannedShare agree_on_share(Ranks& ranks, const Inputs<T>& in, const TokenBlocks& query_blocks,
                            const TokenBlocks& key_blocks, const Operator& op, TensorView<T> out,
                            const Device& device) {
  PlannedShare own{};
  mhla::detail::agree(ranks, kDistributed, [&](mhla::detail::Facts& facts) {
    if (op.denominator == Denominator::kCrossQuery) {
      fail_option(kDistributed, "op", "has a cross-query denominator", "none or key sums");
    }
    own.problem = make_problem<D, E>(kDistributed, in, query_blocks, key_blocks, false, op, out);
    expect_norm(kDistributed, own.problem,
                planned<D, E>(own.problem, device, Form::kThreeStage, ""));
    state<D, E, T>(facts, own.problem);
  });
  const ShareCounts counts = counts_of(own.problem);
  std::vector<ShareCounts> all(static_cast<std::size_t>(ranks.size()));
  ranks.agree(std::as_bytes(std::span(&counts, 1)), std::as_writable_bytes(std::span(all)));
  own.share = make_share(all, static_cast<std::size_t>(ranks.rank()));
  own.plan = share_plan<D, E>(own.problem, own.share, device);
  return own;
}

}  // namespace mhla::cuda::detail
