#pragma once

/// \file
/// Arguments of a form over ranks. Each rank checks its arguments, then all compare them
/// (distributed/agreement.hpp), so that either all ranks throw or none does.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "mhla/core/error.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/attention/fitting_plan.cuh"
#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/make_problem.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
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

/// Number of an architecture in comparisons: 80 or 90.
constexpr Index number(Arch arch) { return arch == Arch::kSm90a ? 90 : 80; }

/// Adds the values that must be equal on all ranks.
template <int D, int E, DeviceScalar T>
void state(mhla::detail::CallSignature& signature, const Problem& problem, const Device& device,
           const Pattern& pattern) {
  using mhla::detail::Fingerprint;
  const auto bits = [](const FeatureMap& map) {
    return Fingerprint().add(map.floor).add(map.eps).add(map.exponential);
  };
  const Operator& op = problem.op;
  signature.add("device", "kernels of architecture", number(device.kernels()));
  signature.add("device", "bytes of shared memory per thread block", device.shared_bytes);
  signature.add("device", "compute capability", device.capability);
  signature.add("device", "kernels of CUDA", device.toolkit);
  signature.add("q", "sequences", problem.batch);
  signature.add("q", "heads", problem.heads);
  signature.add("q", "width", D);
  signature.add("v", "width", E);
  signature.add_bits("q", "type", Fingerprint().add(std::same_as<T, Eigen::half>));
  signature.add_bits("op", "query map", bits(op.query_map));
  signature.add_bits("op", "key map", bits(op.key_map));
  signature.add_bits("op", "denominator, eps or scale",
                     Fingerprint().add(op.denominator).add(op.eps).add(op.scale));
  signature.add_bits("op", "precision of summaries", Fingerprint().add(op.summaries));
  signature.add_bits("gain", "presence or norm_eps",
                     Fingerprint().add(problem.norm.normed).add(problem.norm.eps));
  signature.add("pattern", "rows", pattern.rows());
  signature.add("pattern", "columns", pattern.cols());
  signature.add("pattern", "rows of column 0", pattern.last_row(0));
  signature.add("pattern", "columns of row 0", pattern.last(0));
}

/// A rank's blocks.
struct RankBlocks {
  TokenBlocks queries;
  TokenBlocks keys;
};
static_assert(std::is_trivially_copyable_v<RankBlocks>);

/// Sets the size of blocks that are short because they are a rank's only block along an axis. They
/// get the size that blocks have on other ranks. Kernels then take their tokens in the same pieces
/// and sum in the same order.
/// \throws option_error where other blocks differ in size
inline void give_one_size(const char* function, const char* argument, std::span<RankBlocks> ranks,
                          TokenBlocks RankBlocks::*blocks) {
  using Sizes = std::array<std::int32_t, 3>;
  const auto tokens = [](const TokenBlocks& x) { return Sizes{x.frames(), x.rows(), x.columns()}; };
  const auto block = [](const TokenBlocks& x) {
    return Sizes{x.block_frames(), x.block_rows(), x.block_columns()};
  };
  Sizes all{};
  for (const RankBlocks& rank : ranks) {
    const Sizes size = block(rank.*blocks);
    for (std::size_t axis = 0; axis < 3; ++axis) all[axis] = std::max(all[axis], size[axis]);
  }
  const auto text = [](const Sizes& x) { return shape_text({x[0], x[1], x[2]}); };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Sizes count = tokens(ranks[r].*blocks), size = block(ranks[r].*blocks);
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (size[axis] == all[axis] || size[axis] == count[axis]) continue;
      fail_option(function, argument, "have " + text(size) + " tokens on rank " + std::to_string(r),
                  text(all) + ", the largest");
    }
    ranks[r].*blocks = TokenBlocks(count[0], count[1], count[2], all[0], all[1], all[2]);
  }
}

/// Columns that a rank's rows read. In a causal form they include the rank's blocks.
inline mhla::detail::ColumnSpan columns_of(const Share& share, const Pattern& pattern, Index rank,
                                           bool causal) {
  const auto rows = mhla::detail::share_of(share.query_blocks, rank);
  const Index end = causal ? rows.first + rows.count : share.key_blocks.back();
  const auto of_row = [&](Index i) {
    return mhla::detail::readable(pattern, i, mhla::detail::Reach::kAll, end);
  };
  return {of_row(rows.first).begin, of_row(rows.first + rows.count - 1).end};
}

/// \param pattern  Pattern of the mixing matrix; without rows it means all coefficients.
/// \param ranks    Blocks of every rank, all of one size.
/// \throws option_error unless there are fewer than 2^31 blocks and every rank's queries read some;
///         shape_error for a pattern of other blocks
inline Share make_share(const char* function, std::span<const RankBlocks> ranks, Index rank,
                        bool causal, Pattern pattern) {
  using mhla::detail::Reach;
  Share share{{0}, {0}, rank, {}, {}};
  for (const RankBlocks& blocks : ranks) {
    share.query_blocks.push_back(share.query_blocks.back() + blocks.queries.blocks());
    share.key_blocks.push_back(share.key_blocks.back() + blocks.keys.blocks());
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
      fail_option(function, "pattern",
                  "has no coefficient for the queries of rank " + std::to_string(r),
                  "at least one per rank");
    }
    if (r == rank) share.columns = columns;
  }
  share.route = mhla::detail::summary_route(pattern, causal ? Reach::kEarlier : Reach::kAll,
                                            share.query_blocks, share.key_blocks, rank);
  return share;
}

/// A rank's share and its plan.
struct PlannedShare {
  Problem problem;
  Share share;
  SharePlan plan;
};

/// Checks, compares and plans a rank's share.
/// \throws shape_error, option_error on all ranks if the arguments of one rank do not fit, or if
///         they differ; communication_error
template <int D, int E, bool kCausal, DeviceScalar T, distributed::Communicator Ranks>
PlannedShare agree_on_share(Ranks& ranks, const Inputs<T>& in, const TokenBlocks& query_blocks,
                            const TokenBlocks& key_blocks, const Operator& op, TensorView<T> out,
                            const Device& device, const Pattern& pattern) {
  static_assert(!std::is_same_v<T, float>,
                "sequences over devices have kernels for bfloat16 and half, not for float32");
  const char* const name = kDistributed<kCausal>;
  PlannedShare planned{};
  mhla::detail::agree(ranks, name, [&](mhla::detail::CallSignature& signature) {
    if (op.denominator == Denominator::kCrossQuery) {
      fail_option(name, "op", "has a cross-query denominator", "none or key sums");
    }
    expect_few_matrices(name, op.matrices, false, "kShared: ranks take one matrix");
    expect_decay_terms(name, op, false, "0: ranks take a matrix of coefficients");
    expect_all_tokens(name, in, "none: ranks take all tokens");
    planned.problem = make_problem<D, E>(name, in, query_blocks, key_blocks, kCausal, op, out);
    if (pattern.sparse()) fail_option(name, "pattern", "has lists of blocks", "a band");
    state<D, E, T>(signature, planned.problem, device, pattern);
  });
  const RankBlocks blocks{query_blocks, key_blocks};
  std::vector<RankBlocks> all(static_cast<std::size_t>(ranks.size()));
  ranks.agree(std::as_bytes(std::span(&blocks, 1)), std::as_writable_bytes(std::span(all)));
  give_one_size(name, "key_blocks", all, &RankBlocks::keys);
  give_one_size(name, "query_blocks", all, &RankBlocks::queries);
  planned.share = make_share(name, all, ranks.rank(), kCausal, pattern);
  planned.problem.query_blocks = all[static_cast<std::size_t>(ranks.rank())].queries;
  planned.problem.key_blocks = all[static_cast<std::size_t>(ranks.rank())].keys;
  mhla::detail::agree(ranks, name, [&](mhla::detail::CallSignature& signature) {
    planned.plan = fitting(name, share_plan<D, E>(planned.problem, planned.share, device), device);
    signature.add("k", "strides for kernels of architecture", number(planned.plan.summary));
    signature.add("q", "strides for kernels of architecture", number(planned.plan.read_out));
  });
  return planned;
}

}  // namespace mhla::cuda::detail
