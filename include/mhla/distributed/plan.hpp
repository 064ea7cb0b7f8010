#pragma once

/// \file
/// Transfers of a call over ranks: blocks whose summaries a rank sends and receives, with the
/// reason, and their bytes. Pure arithmetic: no communication.

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/distributed/route.hpp"
#include "mhla/policy/normalizer.hpp"
#include "mhla/policy/pattern.hpp"
#include "mhla/stage/denominator.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {

/// The even split of `blocks` over ranks: rank r has blocks [split[r], split[r + 1]).
/// \throws option_error unless blocks >= 0 and ranks >= 1.
std::vector<Index> even_split(Index blocks, Index ranks);

/// Sizes of one head's summaries.
struct HeadWidths {
  Index features;                        ///< D, after the feature map
  Index values;                          ///< E
  WeightSums sums = WeightSums::kToken;  ///< that the normaliser reads
  Index normalizer_features = 0;         ///< of the denominator's separate keys, 0 for none
  Index block_length = 0;                ///< W, of CrossQuery
};

/// Transfers of one head on one rank, in blocks.
struct Plan {
  bool to_all;           ///< every rank reads all blocks: one all_gather; else an exchange
  Index sent, received;  ///< forward, of summaries; a block sent to two ranks counts twice
  Index gradients_sent;  ///< additionally for gradients, of mixtures
  Index gradients_received;
  Index block_bytes;  ///< of one block's summary

  /// Bytes of `heads` heads of all sequences.
  Index bytes_sent(Index heads) const { return heads * sent * block_bytes; }
  Index bytes_received(Index heads) const { return heads * received * block_bytes; }
  /// The route and its reason, in a sentence.
  std::string text() const;
};

/// Returns the transfers of bidirectional attention.
/// \tparam A  accumulator: float, double
/// \param pattern  pattern of the mixing matrix
/// \param queries, keys  borders of all ranks, as from even_split
/// \throws shape_error unless the borders ascend from 0, are of as many ranks, and end within the
///     blocks of the pattern.
template <Accumulator A>
Plan bidirectional_plan(const Pattern& pattern, std::span<const Index> queries,
                        std::span<const Index> keys, Index rank, const HeadWidths& head);
/// Returns the transfers of causal attention: queries and keys have one split.
template <Accumulator A>
Plan causal_plan(const Pattern& pattern, std::span<const Index> blocks, Index rank,
                 const HeadWidths& head);

// ------------------------------------------------------------------------------------------------

inline std::vector<Index> even_split(Index blocks, Index ranks) {
  if (blocks < 0 || ranks < 1) {
    mhla::detail::fail_option(
        "distributed::even_split", "blocks",
        "is " + std::to_string(blocks) + " over " + std::to_string(ranks) + " ranks",
        "at least 0 over at least 1");
  }
  std::vector<Index> first{0};
  for (Index r = 0; r < ranks; ++r) {
    first.push_back(first.back() + blocks / ranks + (r < blocks % ranks ? 1 : 0));
  }
  return first;
}

inline std::string Plan::text() const {
  const std::string bytes = std::to_string(block_bytes) + " bytes a block and head";
  return to_all ? "summaries go to all ranks, as each reads all blocks: " + bytes
                : "summaries go to the ranks that read them: " + std::to_string(received) +
                      " blocks come, " + bytes;
}

}  // namespace distributed

namespace detail {

/// Bytes of a row of all arrays that HeadSummaries and SlotSums share.
template <class A>
Index summary_bytes(const distributed::HeadWidths& head) {
  const HeadSizes sizes{0, 0, head.features, head.values, head.sums, head.normalizer_features};
  Index numbers = 0;
  counted_bytes([&](Arena& arena) {
    const HeadSummaries<A> summaries("distributed::plan", arena, sizes, 1);
    summaries.for_each_array([&](auto, Index columns) { numbers += columns; });
    return 0;
  });
  if (head.sums == WeightSums::kCrossQuery) numbers += head.block_length;
  return numbers * Index{sizeof(A)};
}

template <class A>
distributed::Plan plan_of(const char* function, const Pattern& pattern, Reach reach,
                          const Borders& queries, const Borders& keys, Index rank,
                          const distributed::HeadWidths& head) {
  const Index ranks = static_cast<Index>(queries.size()) - 1;
  if (queries.size() != keys.size() || ranks < 1 || rank < 0 || rank >= ranks) {
    fail_shape(
        function, "queries",
        "has borders for " + std::to_string(ranks) + " ranks, and rank is " + std::to_string(rank),
        "as many ranks as keys, " + std::to_string(static_cast<Index>(keys.size()) - 1) +
            ", and one of them");
  }
  if (!distributed::is_split(queries, ranks, queries.back()) ||
      !distributed::is_split(keys, ranks, keys.back())) {
    fail_shape(function, "queries", "or keys have borders out of order",
               "borders that begin with 0 and ascend");
  }
  if (queries.back() > pattern.rows() || keys.back() > pattern.cols()) {
    fail_shape(function, "pattern", "is " + shape_text({pattern.rows(), pattern.cols()}),
               "at least " + shape_text({queries.back(), keys.back()}));
  }
  const Route summaries = summary_route(pattern, reach, queries, keys, rank);
  const Route mixtures = mixture_route(pattern, reach, queries, keys, rank);
  return {summaries.all(),      summaries.rows_sent(),    summaries.rows_received(),
          mixtures.rows_sent(), mixtures.rows_received(), summary_bytes<A>(head)};
}

}  // namespace detail

namespace distributed {

template <Accumulator A>
Plan bidirectional_plan(const Pattern& pattern, std::span<const Index> queries,
                        std::span<const Index> keys, Index rank, const HeadWidths& head) {
  return mhla::detail::plan_of<A>("distributed::bidirectional_plan", pattern,
                                  mhla::detail::Reach::kAll, {queries.begin(), queries.end()},
                                  {keys.begin(), keys.end()}, rank, head);
}

template <Accumulator A>
Plan causal_plan(const Pattern& pattern, std::span<const Index> blocks, Index rank,
                 const HeadWidths& head) {
  const mhla::detail::Borders split(blocks.begin(), blocks.end());
  return mhla::detail::plan_of<A>("distributed::causal_plan", pattern,
                                  mhla::detail::Reach::kEarlier, split, split, rank, head);
}

}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla
