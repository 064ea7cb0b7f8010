#pragma once

/// \file
/// One head of the gradient of bidirectional attention; formulas: gradient/bidirectional.hpp. A
/// rank with a share of the blocks composes the same steps. Between them it receives data of other
/// ranks: summaries before read_queries, gradients of mixtures before read_keys, and parts of
/// weights' gradients before finish.

#include <algorithm>

#include "mhla/attention/bidirectional_head.hpp"
#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/gradient/head_gradient.hpp"
#include "mhla/gradient/weight_parts.hpp"
#include "mhla/stage/denominator.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/mixing_gradient.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op>
class BidirectionalGradient {
  using A = accumulator_t<T>;
  using Worker = GradientScratch<A>;

 public:
  /// \param kept  memory of the summaries; null: the arena
  BidirectionalGradient(const char* function, Arena& arena, Arena* kept, const Inputs<T>& in,
                        const QueryBlocks& query_blocks, const KeyBlocks& key_blocks, const Op& op,
                        Index workers, const CrossShares& shares)
      : in_(in),
        query_blocks_(query_blocks),
        key_blocks_(key_blocks),
        op_(op),
        head_(in, op),
        shares_(shares),
        slots_(cross_query() ? std::max(shares.places, largest_block(query_blocks)) : 0),
        query_group_(
            group_blocks<A>(shares.queries.count, sizes().features, sizes().values, workers)),
        key_group_(group_blocks<A>(shares.keys.count, sizes().features, sizes().values, workers)),
        summaries_(function, kept == nullptr ? arena : *kept, sizes(), shares.keys),
        dmixtures_(function, arena, shares.queries.all, sizes().features, sizes().values),
        dkey_sums_(arena.take<A>(function, {most_blocks(), sum_features()})),
        slot_sums_(function, arena, shares.keys.all, slots_),
        dslot_sums_(function, arena, shares.queries.all, slots_),
        dqueries_(function, arena, cross_query() && !head_.separate_normalizer() ? in.q.rows : 0,
                  sizes().features),
        query_parts_(function, arena, shares.queries, op.query_map.weights()),
        key_parts_(function, arena, shares.keys, op.key_map.weights()),
        workers_(function, arena, workers, [&](Arena& a) {
          return Worker(function, a, head_.raw(), sizes(), std::max(query_group_, key_group_),
                        most_blocks(), slots_);
        }) {}

  /// Sets the tensors and the sums; not needed to count bytes.
  void set(MatrixView<const T> dout, const Gradients<T>& gradients,
           const ParameterGradients<A>& sums) {
    head_.set(dout, gradients);
    sums_ = sums;
    query_parts_.start(sums.query_map);
    key_parts_.start(sums.key_map);
  }

  /// Writes the summaries, and the sums of them that queries read.
  /// \param summarized  true if the summaries are computed already
  void summarize(bool summarized, const ExecutorRef& executor) const {
    if (summarized && !cross_query()) return;
    executor.for_each(tasks(), [&](Index b, Index w) { summarize_block(b, w, summarized); });
  }
  /// The query side.
  void read_queries(MixingView<const A> mixing, const ExecutorRef& executor) const {
    executor.for_each(query_groups(), [&](Index g, Index w) {
      const MixingGroup<A> group = query_group(mixing, g, w);
      for (Index r = 0; r < group.rows(); ++r) query_block(group, r, w);
      finish_group(group, w);
    });
  }
  /// The key side.
  void read_keys(MixingView<const A> mixing, const ExecutorRef& executor) const {
    executor.for_each(key_groups(), [&](Index g, Index w) {
      const MixingGroup<A> group = key_group(mixing, g, w);
      for (Index r = 0; r < group.rows(); ++r) key_block(group, r, w);
    });
  }
  /// Sums the gradients of the maps' weights.
  void finish() const {
    query_parts_.finish(sums_.query_map);
    key_parts_.finish(sums_.key_map);
  }

  // The pieces of these steps, by worker w, for ranks (distributed/rank_steps.hpp).

  Index tasks() const { return key_blocks_.blocks(); }
  /// Writes the rows of block b of the share, which has as many query blocks for CrossQuery.
  void summarize_block(Index b, Index w, bool summarized = false) const {
    if (!summarized) summaries_.summarize(in_, key_blocks_, b, op_, workers_[w].key_scratch());
    if (cross_query()) sum_slots(b, workers_[w]);
  }
  /// Calls f(rows, columns) for every array with one row per key block.
  template <class F>
  void for_each_array(F&& f) const {
    summaries_.for_each_array(f);
    if (cross_query()) f(slot_sums_.rows(), slots_);
  }
  Index query_groups() const { return groups_of(query_blocks_.blocks(), query_group_); }
  /// Computes the mixtures that query group g of the share reads.
  MixingGroup<A> query_group(MixingView<const A> mixing, Index g, Index worker) const {
    const Worker& w = workers_[worker];
    const ColumnSpan span = group_blocks(shares_.queries, query_group_, g);
    const MixingGroup<A> group(mixing, span.begin, span.end, Reach::kAll, shares_.keys.all,
                               w.coefficients);
    mix(group, summaries_.values(), w.mixtures);
    if (token_sums()) group.mix(w.key_sums, summaries_.key_sums(), sum_features());
    if (cross_query()) group.mix(w.places, slot_sums_.rows(), slots_);
    return group;
  }
  /// The query side of the r-th block of a group. Returns the block, counted in the share.
  Index query_block(const MixingGroup<A>& group, Index r, Index w) const {
    const Index local = group.begin() - shares_.queries.first + r;
    query_block(local, r, workers_[w].mixtures.behind(r, group.rows()), workers_[w]);
    return local;
  }
  /// The gradient of the group's rows of m.
  void finish_group(const MixingGroup<A>& group, Index w) const {
    if (sums_.mixing.absent()) return;
    const Index begin = group.begin();
    MixingGradient<A> gradient = workers_[w].dmixing;
    gradient.start(group.matrix().pattern(), begin, begin + group.rows(), Reach::kAll,
                   shares_.keys.all);
    gradient.add(dmixtures_, summaries_.values());
    if (token_sums()) {
      gradient.add({dkey_sum(begin), sum_features()}, summaries_.key_sums(), sum_features());
    }
    if (cross_query()) gradient.add(dslot_sums_.rows().below(begin), slot_sums_.rows(), slots_);
    gradient.store(sums_.mixing);
  }
  /// Calls f(rows, columns) for every array with one row per query block.
  template <class F>
  void for_each_mixture_array(F&& f) const {
    for_each_slab(dmixtures_, f);
    if (token_sums()) f(Rows<A>{dkey_sums_, sum_features()}, sum_features());
    if (cross_query()) f(dslot_sums_.rows(), slots_);
  }
  Index key_groups() const { return groups_of(key_blocks_.blocks(), key_group_); }
  /// Mixes the gradients of mixtures that read key group g of the share.
  MixingGroup<A> key_group(MixingView<const A> mixing, Index g, Index worker) const {
    const Worker& w = workers_[worker];
    const ColumnSpan span = group_blocks(shares_.keys, key_group_, g);
    const auto group = MixingGroup<A>::of_columns(mixing, span.begin, span.end, Reach::kAll,
                                                  shares_.queries.all, w.coefficients);
    mix(group, dmixtures_, w.mixtures);
    if (token_sums()) group.mix(w.key_sums, {dkey_sums_, sum_features()}, sum_features());
    if (cross_query()) group.mix(w.places, dslot_sums_.rows(), slots_);
    return group;
  }
  /// The key side of the r-th block of a group.
  void key_block(const MixingGroup<A>& group, Index r, Index worker) const {
    const Worker& w = workers_[worker];
    const Index b = group.begin() - shares_.keys.first + r;
    if (cross_query()) slot_block(b, w.places.row(r), w);
    const A* const dz = token_sums()    ? w.key_sums.row(r)
                        : cross_query() ? dkey_sum(group.begin() + r)
                                        : nullptr;
    head_.differentiate_keys(key_blocks_, b, w.mixtures.kv.row(r), dz, key_parts_.part(b), w);
  }
  const WeightParts<A>& query_parts() const { return query_parts_; }
  const WeightParts<A>& key_parts() const { return key_parts_; }

 private:
  const HeadSizes& sizes() const { return head_.sizes(); }
  bool token_sums() const { return sizes().sums == WeightSums::kToken; }
  bool cross_query() const { return sizes().sums == WeightSums::kCrossQuery; }
  Index sum_features() const { return sizes().sum_features(); }
  Index most_blocks() const { return std::max(shares_.queries.all, shares_.keys.all); }
  /// kToken: dz~ of query block b. kCrossQuery: dz of key block b.
  A* dkey_sum(Index b) const { return dkey_sums_ + b * sum_features(); }

  /// s_bw = phi(q_bw) . z_b for the slots of block b of the share; 0 where the query is masked.
  void sum_slots(Index b, const Worker& w) const {
    const Index place = shares_.queries.first + b;
    std::fill_n(slot_sums_.block(place), slots_, A(0));
    std::fill_n(dslot_sums_.block(place), slots_, A(0));
    StripCursor strip(query_blocks_, b, in_.query_mask);
    while (strip.next() > 0) {
      gather_denominator_queries(strip.tokens(), strip.count(), w);
      for (Index s = 0; s < strip.count(); ++s) {
        slot_sums_.block(place)[strip.places()[s]] =
            dot(head_.denominator_queries(w).row(s), summaries_.key_sum(place), sum_features());
        if (!head_.separate_normalizer()) {
          std::fill_n(dqueries_.row(strip.tokens()[s]), sizes().features, A(0));
        }
      }
    }
  }
  void gather_denominator_queries(const Index* tokens, Index count, const Worker& w) const {
    head_.gather_normalizer_queries(tokens, count, w);
    if (!head_.separate_normalizer()) head_.gather_queries(tokens, count, w);
  }

  /// The query side of block `own` of the share, the r-th of its group; prefetches a mixture.
  void query_block(Index local, Index r, const A* next_mixture, const Worker& w) const {
    const Index i = shares_.queries.first + local;
    A* const dweights = query_parts_.part(local);
    const Rows<A> transposed =
        transpose_to(w.mixtures.kv.row(r), sizes().features, sizes().values, w.transposed);
    if (token_sums()) std::fill_n(dkey_sum(i), sum_features(), A(0));
    Start start = Start::kZero;
    StripCursor strip(query_blocks_, local, in_.query_mask);
    strip.next();
    Strip queries;
    do {  // at least once: a block without tokens gets zeros
      head_.select_queries(strip.now(), nullptr, queries);
      const Index count = queries.count;
      const Index *const tokens = queries.tokens, *const places = queries.places;
      head_.gather_queries(tokens, count, w);
      if (token_sums()) {
        head_.gather_normalizer_queries(tokens, count, w);
        head_.sum_weights(count, w.key_sums.row(r), w);
      }
      for (Index s = 0; cross_query() && s < count; ++s) w.sums[s] = w.places.row(r)[places[s]];
      head_.divide(tokens, count, w);
      head_.read_queries(count, transposed, w);
      Prefetch next = head_.next_queries(strip.ahead());
      if (!strip.more()) next.add(next_mixture, sizes().features * sizes().values);
      head_.accumulate_mixture(start, count, dmixtures_.block(i), next, w);
      head_.differentiate_sums(count, w);
      if (token_sums()) {
        head_.differentiate_key_sum(count, w.dsums, w.key_sums.row(r), w, dkey_sum(i));
        head_.finish_normalizer_queries(tokens, count, dweights, w);
      }
      for (Index s = 0; cross_query() && s < count; ++s) {
        dslot_sums_.block(i)[places[s]] = w.dsums[s];
      }
      if (cross_query() &&
          !head_.separate_normalizer()) {  // slot_block adds to dphi(q) before its adjoint
        for (Index s = 0; s < count; ++s)
          std::copy_n(w.dqueries.row(s), sizes().features, dqueries_.row(tokens[s]));
      } else {
        head_.finish_queries(tokens, count, dweights, w);
      }
      start = Start::kTarget;
    } while (strip.next() > 0);
  }

  /// dphi of the queries of block `own` of the share through s_bw, and dz_b.
  void slot_block(Index local, const A* dslots, const Worker& w) const {
    const Index b = shares_.queries.first + local;
    A* const dweights = query_parts_.part(local);
    std::fill_n(dkey_sum(b), sum_features(), A(0));
    StripCursor strip(query_blocks_, local, in_.query_mask);
    Strip queries;
    while (strip.next() > 0) {
      head_.select_queries(strip.now(), dslots, queries);
      const Index count = queries.count;
      const Index* const tokens = queries.tokens;
      gather_denominator_queries(tokens, count, w);
      for (Index s = 0; s < count; ++s) {
        w.dsums[s] = dslots[queries.places[s]];
        if (head_.separate_normalizer()) continue;
        std::copy_n(dqueries_.row(tokens[s]), sizes().features, w.dqueries.row(s));
      }
      head_.differentiate_key_sum(count, w.dsums, summaries_.key_sum(b), w, dkey_sum(b));
      head_.finish_normalizer_queries(tokens, count, dweights, w);
      if (!head_.separate_normalizer()) head_.finish_queries(tokens, count, dweights, w);
    }
  }

  const Inputs<T>& in_;
  const QueryBlocks& query_blocks_;
  const KeyBlocks& key_blocks_;
  const Op& op_;
  HeadGradient<T, Op> head_;
  ParameterGradients<A> sums_{};
  CrossShares shares_;
  Index slots_;                    // W of CrossQuery, 0 of the others
  Index query_group_, key_group_;  // blocks that are mixed together
  HeadSummaries<A> summaries_;     // S, z
  Summaries<A> dmixtures_;         // dS~
  A* dkey_sums_;                   // own sums: dz~ of query blocks; CrossQuery: dz of key blocks
  SlotSums<A> slot_sums_;          // CrossQuery: s_bw
  SlotSums<A> dslot_sums_;         // CrossQuery: dr of the query in block i, slot w
  Rows<A> dqueries_;               // CrossQuery: dphi(q) of the numerator [Nq,D]
  WeightParts<A> query_parts_, key_parts_;
  Workers<Worker> workers_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
