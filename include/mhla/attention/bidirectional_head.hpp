#pragma once

/// \file
/// One head of the bidirectional form, on any unit (kernel/unit.hpp), in two steps. The first step
/// summarises the key blocks. The second one mixes the summaries group by group and reads out the
/// queries of each group. A rank has a share of the blocks, and composes both steps of the same
/// pieces (distributed/rank_steps.hpp).

#include <algorithm>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/policy/normalizer.hpp"
#include "mhla/stage/amx/unit.hpp"
#include "mhla/stage/denominator.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/read_out.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The shares of a call of the bidirectional form.
struct CrossShares {
  BlockShare queries, keys;
  Index places = 0;  ///< W of CrossQuery on other ranks, which one without tokens cannot know
};

template <class Unit, Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op>
class BidirectionalHead {
  using A = accumulator_t<T>;
  using Stages = UnitStages<Unit, A>;

  struct Worker {
    typename Stages::Keys keys;
    QueryScratch<A> queries;
    Coefficients<A> coefficients;
    typename Stages::Mixtures mixtures;
    Rows<A> key_sums;  // z~ [group, Dz]
    Rows<A> places;    // r of CrossQuery [group, W]
  };

 public:
  /// \param kept  memory of the summaries; null: the arena
  BidirectionalHead(Unit, const char* function, Arena& arena, Arena* kept, const Inputs<T>& in,
                    const QueryBlocks& query_blocks, const KeyBlocks& key_blocks, const Op& op,
                    Index workers, const CrossShares& shares)
      : in_(in),
        query_blocks_(query_blocks),
        key_blocks_(key_blocks),
        op_(op),
        n_(head_sizes(in, op)),
        shares_(shares),
        group_(Stages::group(query_blocks.blocks(), n_.features, n_.values, workers)),
        summaries_(function, kept == nullptr ? arena : *kept, n_, shares.keys),
        slot_sums_(function, arena, shares.keys.all, places()),
        workers_(function, arena, workers, [&](Arena& a) { return make_worker(function, a); }) {}

  /// Writes the summaries, and what queries sum of them.
  void summarize(const ExecutorRef& executor) const {
    executor.for_each(summaries_.tasks(), [&](Index task, Index w) {
      summaries_.summarize(in_, key_blocks_, task, op_, workers_[w].keys);
    });
    if (!cross_query()) return;
    executor.for_each(query_blocks_.blocks(),
                      [&](Index b, Index w) { sum_slots(b, workers_[w].queries); });
  }
  /// Writes the outputs from the summaries of all blocks.
  void read(MixingView<const A> mixing, MatrixView<T> out, const ExecutorRef& executor) const {
    executor.for_each(groups(), [&](Index g, Index w) {
      const MixingGroup<A> coefficients = group(mixing, g, w);
      mix(coefficients, values(), mixtures(w));
      mix_sums(coefficients, w);
      for (Index r = 0; r < coefficients.rows(); ++r) read_block(coefficients, r, w, out);
    });
  }

  // The pieces of both steps, on the vector unit, by worker w.

  Index tasks() const { return summaries_.tasks(); }
  /// Writes the rows of block b of the share.
  void summarize_block(Index b, Index w) const {
    summaries_.summarize(in_, key_blocks_, b, op_, workers_[w].keys);
    if (cross_query()) sum_slots(b, workers_[w].queries);
  }
  /// Calls f(rows, columns) for every array with one row per key block.
  template <class F>
  void for_each_array(F&& f) const {
    summaries_.for_each_array(f);
    if (slot_sums_.places > 0) f(slot_sums_.rows(), slot_sums_.places);
  }
  Index groups() const { return groups_of(query_blocks_.blocks(), group_); }
  /// Rows of m that group g of the share reads, in scratch.
  MixingGroup<A> group(MixingView<const A> mixing, Index g, Index w) const {
    const ColumnSpan span = group_blocks(shares_.queries, group_, g);
    return MixingGroup<A>(mixing, span.begin, span.end, Reach::kAll, shares_.keys.all,
                          workers_[w].coefficients);
  }
  const auto& values() const { return summaries_.values(); }  ///< S of all blocks
  const auto& mixtures(Index w) const { return workers_[w].mixtures; }
  void mix_sums(const MixingGroup<A>& coefficients, Index w) const {
    if (n_.sums == WeightSums::kToken) {
      coefficients.mix(workers_[w].key_sums, summaries_.key_sums(), n_.sum_features());
    } else if (cross_query()) {
      coefficients.mix(workers_[w].places, slot_sums_.rows(), slot_sums_.places);
    }
  }
  /// Reads out the r-th block of a group, whose summaries are mixed.
  void read_block(const MixingGroup<A>& coefficients, Index r, Index w, MatrixView<T> out) const {
    read_block(coefficients.begin() - shares_.queries.first + r, r, workers_[w], out);
  }

 private:
  bool cross_query() const { return n_.sums == WeightSums::kCrossQuery; }
  /// W of CrossQuery, 0 of other sums.
  Index places() const {
    if (!cross_query()) return 0;
    return std::max(shares_.places, largest_block(query_blocks_));
  }

  Worker make_worker(const char* function, Arena& arena) const {
    return {{function, arena, key_raw_size(in_, op_), n_.widest(), n_.values},
            {function, arena, query_raw_size(in_, op_), n_.features, n_.normalizer_features,
             Stages::padded(n_.values)},
            {function, arena, group_, shares_.keys.all},
            {function, arena, group_, summaries_.values()},
            {function, arena, group_, n_.sum_features()},
            {function, arena, group_, places()}};
  }

  /// Writes the rows scale * phi(q) that the denominators of a strip read.
  void gather_denominator_queries(const Index* tokens, Index count,
                                  const QueryScratch<A>& scratch) const {
    gather_queries(n_.separate_normalizer() ? in_.normalizer_q : in_.q, tokens, count,
                   op_.query_map, static_cast<A>(op_.scale), scratch.raw,
                   scratch.normalizer_queries);
  }

  /// s_bw = phi(q_bw) . z_b for the slots of block b of the share; 0 where the query is masked.
  void sum_slots(Index b, const QueryScratch<A>& scratch) const {
    const Index place = shares_.queries.first + b;
    std::fill_n(slot_sums_.block(place), slot_sums_.places, A(0));
    StripCursor strip(query_blocks_, b, in_.query_mask);
    while (strip.next() > 0) {
      gather_denominator_queries(strip.tokens(), strip.count(), scratch);
      sum_weights(scratch.normalizer_queries, strip.count(), n_.sum_features(),
                  summaries_.key_sum(place), scratch.denominators);
      for (Index s = 0; s < strip.count(); ++s) {
        slot_sums_.block(place)[strip.places()[s]] = scratch.denominators[s];
      }
    }
  }

  /// Reads out query block i, the g-th of its group.
  void read_block(Index i, Index g, const Worker& w, MatrixView<T> out) const {
    clear_masked(query_blocks_, i, in_.query_mask, out);
    StripCursor strip(query_blocks_, i, in_.query_mask);
    while (strip.next() > 0) {
      Prefetch next(tiles_of<A>(strip.count(), out.cols), strip.ahead().tokens, strip.ahead().count,
                    in_.q, out);
      gather_queries(in_.q, strip.tokens(), strip.count(), op_.query_map, static_cast<A>(op_.scale),
                     w.queries.raw, w.queries.queries);
      write_denominators(strip.tokens(), strip.places(), strip.count(), g, w);
      write_mixture(w.queries, strip.tokens(), strip.count(), w.mixtures, g, next, out);
      next.finish();
    }
  }

  /// den_t of the queries in scratch.
  void write_denominators(const Index* tokens, const Index* places, Index count, Index g,
                          const Worker& w) const {
    A* const sums = w.queries.denominators;
    if (n_.sums == WeightSums::kToken) {
      if (n_.separate_normalizer()) gather_denominator_queries(tokens, count, w.queries);
      sum_weights(w.queries.normalizer_queries, count, n_.sum_features(), w.key_sums.row(g), sums);
    } else if (cross_query()) {
      for (Index s = 0; s < count; ++s) sums[s] = w.places.row(g)[places[s]];
    }
    detail::write_denominators(op_.normalizer, static_cast<const A*>(sums), count, sums);
  }

  const Inputs<T>& in_;
  const QueryBlocks& query_blocks_;
  const KeyBlocks& key_blocks_;
  const Op& op_;
  HeadSizes n_;
  CrossShares shares_;
  Index group_;  // query blocks that are mixed together
  HeadSummaries<A, typename Stages::Summaries> summaries_;
  SlotSums<A> slot_sums_;
  Workers<Worker> workers_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
