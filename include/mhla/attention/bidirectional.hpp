#pragma once

/// \file
/// MHLA over a whole image, video or sequence: every query may read every key.
///
///     S_b  = sum_{t in b} phi(k_t) v_t^T             summary.hpp
///     S~_i = sum_b m_ib S_b                          mixing.hpp
///     o_t  = phi(q_t)^T S~_i / den_t                 read_out.hpp, normalizer.hpp
///
/// Self-attention uses one partition; cross-attention one for queries and one for keys, and a
/// mixing matrix [Mq,Mk]. Equal to naive_attention.
/// Cost: 4*N*D*E + 2*M^2*D*E flops; memory M*D*(E+1) numbers for summaries and up to as many for
/// mixtures (of 16 blocks where D*E is small, of up to 256 where it is not).
/// bfloat16 tensors: on processors with a matrix unit the three products run there, see
/// tiled_head.hpp for when they do and what it means for errors; workspace_bytes serves both ways.
/// Summaries that are to be kept for the backward form are computed in float.
/// Source: arXiv:2601.07832, section 4.1.

#include <algorithm>
#include <utility>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/tiled_head.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/read_out.hpp"

namespace mhla::inline MHLA_TARGET {

/// Writes the output of one head into `out` [Nq,E], which must not overlap the inputs.
/// \param query_blocks  partition of the Nq queries into Mq blocks
/// \param key_blocks    partition of the Nk keys into Mk blocks
/// \param mixing        [Mq,Mk]
/// \param workspace     at least bidirectional_workspace_bytes(...), or empty to allocate
/// \param executor      splits over blocks
/// \param kept          where the summaries are left for bidirectional_gradient, at least
///                      bidirectional_kept_bytes(...); empty to keep nothing
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, OperatorOn<T> Op,
          Executor X = Sequential>
void bidirectional(const Inputs<T>& in, const QueryBlocks& query_blocks,
                   const KeyBlocks& key_blocks, const MixingMatrix<accumulator_t<T>>& mixing,
                   const Op& op, std::type_identity_t<MatrixView<T>> out, Workspace workspace = {},
                   X&& executor = {}, Workspace kept = {});

/// Bytes of workspace such a call needs; the data of `in` is not read.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, OperatorOn<T> Op,
          Executor X = Sequential>
std::size_t bidirectional_workspace_bytes(const Inputs<T>& in, const QueryBlocks& query_blocks,
                                          const KeyBlocks& key_blocks, const Op& op,
                                          const X& executor = {});

/// Bytes of the summaries that such a call may keep; the data of `in` is not read.
template <Scalar T, Partition KeyBlocks, OperatorOn<T> Op>
std::size_t bidirectional_kept_bytes(const Inputs<T>& in, const KeyBlocks& key_blocks,
                                     const Op& op);

/// Returns self-attention of Eigen matrices q [N,D], k [N,D], v [N,E], as [N,E].
template <EigenDense Q, EigenDense K, EigenDense V, Partition Blocks,
          OperatorOn<typename Q::Scalar> Op = Operator<>>
auto bidirectional(const Q& q, const K& k, const V& v, const Blocks& blocks,
                   const MixingMatrix<accumulator_t<typename Q::Scalar>>& mixing, const Op& op = {})
    -> Matrix<typename Q::Scalar>;

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Scratch of one worker of the bidirectional form.
template <class A>
struct BidirectionalWorker {
  KeyScratch<A> keys;
  QueryScratch<A> queries;
  Mixtures<A> mixtures;
  A* slot_denominators = nullptr;  // [group, W] of CrossQuery

  BidirectionalWorker(const char* function, Arena& arena, Index query_width, Index key_width,
                      const HeadSizes& n, Index group, Index key_blocks, Index slots)
      : keys(function, arena, key_width, std::max(n.features, n.normalizer_features), n.values),
        queries(function, arena, query_width, n.features, n.normalizer_features, n.values),
        mixtures(function, arena, group, key_blocks, std::max(n.features, n.normalizer_features),
                 n.values),
        slot_denominators(arena.take<A>(function, {group, slots})) {}
};

/// One head of the bidirectional form: what is computed, on what, in which memory.
/// \tparam kTiled  on the matrix unit
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op, bool kTiled = false>
class BidirectionalHead {
  using A = accumulator_t<T>;
  using Z = normalizer_t<Op>;
  using Summaries = std::conditional_t<kTiled, TiledHeadSummaries<T, Op>, HeadSummaries<T, Op>>;
  using Worker = std::conditional_t<kTiled, TiledWorker, BidirectionalWorker<A>>;
  static constexpr bool kCrossQuery = std::same_as<Z, CrossQuery>;

 public:
  /// \param kept  where the summaries lie; null for the arena
  BidirectionalHead(const char* function, Arena& arena, Arena* kept, const Inputs<T>& in,
                    const QueryBlocks& query_blocks, const KeyBlocks& key_blocks, const Op& op,
                    Index workers)
      : function_(function),
        in_(in),
        query_blocks_(query_blocks),
        key_blocks_(key_blocks),
        op_(op),
        sizes_(head_sizes(in, op)),
        slots_(kCrossQuery ? largest_block(query_blocks) : 0),
        group_(kTiled ? tiled_group_blocks(query_blocks.blocks(), tiled_sizes(sizes_), workers)
                      : group_blocks<A>(query_blocks.blocks(), sizes_.features, sizes_.values,
                                        workers)),
        summaries_(function, kept == nullptr ? arena : *kept, sizes_, key_blocks.blocks()),
        slot_sums_(function, arena, key_blocks.blocks(), slots_),
        workers_(function, arena, workers, [this](Arena& a) { return make_worker(a); }) {}

  /// \return false, before `out` is touched, if this head is not for the matrix unit
  template <class X>
  bool run(const MixingMatrix<A>& mixing, MatrixView<T> out, X& executor) {
    if constexpr (kTiled) {
      executor.for_each(summaries_.tiled().pairs(), [&](Index pair, Index w) {
        summaries_.summarize_pair(in_, key_blocks_, pair, op_, workers_[w].keys);
      });
      if (!summaries_.tiled().all_finite()) return false;
    } else {
      executor.for_each(key_blocks_.blocks(), [&](Index b, Index w) {
        summaries_.summarize_block(in_, key_blocks_, b, op_, workers_[w].keys);
      });
    }
    if constexpr (kCrossQuery) {
      executor.for_each(query_blocks_.blocks(), [&](Index b, Index w) { sum_slots(b, w); });
    }
    const Index m = query_blocks_.blocks();
    executor.for_each((m + group_ - 1) / group_, [&](Index g, Index w) {
      read_group(mixing, g * group_, std::min((g + 1) * group_, m), w, out);
    });
    return true;
  }

 private:
  Worker make_worker(Arena& arena) const {
    const Index query_width = std::max(in_.q.cols, in_.normalizer_q.cols);
    const Index key_width = std::max(in_.k.cols, in_.normalizer_k.cols);
    if constexpr (kTiled) {
      return {function_, arena, query_width, key_width, sizes_, group_, summaries_.tiled(), slots_};
    } else {
      return {function_, arena,  query_width,          key_width,
              sizes_,    group_, key_blocks_.blocks(), slots_};
    }
  }

  bool own_normalizer_queries() const { return sizes_.normalizer_features > 0; }

  /// Rows scale * phi(q) of the denominator for a strip whose numerator's are in scratch.queries.
  void gather_denominator_queries(const Index* tokens, Index count,
                                  const QueryScratch<A>& scratch) const {
    if (!own_normalizer_queries()) return;  // one and the same rows
    gather_queries(in_.normalizer_q, tokens, count, op_.query_map, static_cast<A>(op_.scale),
                   scratch.raw, scratch.normalizer_queries);
  }

  /// s_bw = phi(q_bw) . z_b for the slots of block b; 0 where the query is masked.
  void sum_slots(Index b, Index w) const {
    const QueryScratch<A>& scratch = workers_[w].queries;
    std::fill_n(slot_sums_.block(b), slots_, A(0));
    StripCursor strip(query_blocks_, b, in_.query_mask);
    while (strip.next() > 0) {
      gather_queries(own_normalizer_queries() ? in_.normalizer_q : in_.q, strip.tokens(),
                     strip.count(), op_.query_map, static_cast<A>(op_.scale), scratch.raw,
                     scratch.normalizer_queries);
      for (Index s = 0; s < strip.count(); ++s) {
        slot_sums_.block(b)[strip.slots()[s]] =
            dot(scratch.normalizer_queries.row(s), summaries_.key_sum(b), key_sum_features(sizes_));
      }
    }
  }

  /// Mixes and reads out query blocks [begin, end).
  void read_group(const MixingMatrix<A>& mixing, Index begin, Index end, Index w,
                  MatrixView<T> out) const {
    const Worker& local = workers_[w];
    const MixingGroup<A> group(mixing, begin, end, Reach::kAll, summaries_.blocks(),
                               local.mixtures.coefficients);
    summaries_.mix_group(group, local.mixtures);
    if constexpr (kTiled) {
      mix_values(mixing, begin, end, summaries_.tiled(), local.tiled_mixtures);
    }
    if constexpr (kCrossQuery) {
      group.mix({local.slot_denominators, slots_}, {slot_sums_.sums, slots_}, slots_);
    }
    for (Index i = begin; i < end; ++i) read_block(i, i - begin, local, out);
  }

  /// Reads out query block i, the g-th of its group.
  void read_block(Index i, Index g, const Worker& local, MatrixView<T> out) const {
    constexpr Index kRows = kTiled ? kStripTokens : kReadRows;
    clear_masked(query_blocks_, i, in_.query_mask, out);
    StripCursor strip(query_blocks_, i, in_.query_mask);
    while (strip.next() > 0) {
      const Lookahead lookahead(strip.ahead(), in_.q, out);
      if constexpr (kTiled) lookahead.fetch();
      Index column = 0;
      for (Index begin = 0; begin < strip.count(); begin += kRows) {
        const Index count = std::min(kRows, strip.count() - begin);
        const Index* const tokens = strip.tokens() + begin;
        gather_queries(in_.q, tokens, count, op_.query_map, static_cast<A>(op_.scale),
                       local.queries.raw, local.queries.queries);
        write_denominators(tokens, strip.slots() + begin, count, g, local);
        if constexpr (kTiled) {
          write_mixture(local.queries, tokens, count, local.tiled_mixtures, g, local.tiled_queries,
                        out);
        } else {
          write_mixture(local.queries, tokens, count, sizes_.features, local.mixtures.block(g),
                        lookahead, column, out);
          column += panels<A>(sizes_.values);
        }
      }
      if constexpr (!kTiled) lookahead.fetch(column);  // what a short strip has left over
    }
  }

  /// den_t of the queries that are in scratch.
  void write_denominators(const Index* tokens, const Index* slots, Index count, Index g,
                          const Worker& local) const {
    const QueryScratch<A>& rows = local.queries;
    if constexpr (std::same_as<Z, KeySum>) {
      const Index dz = key_sum_features(sizes_);
      gather_denominator_queries(tokens, count, rows);
      key_sum_denominators(rows.normalizer_queries, count, dz, local.mixtures.key_sum + g * dz,
                           static_cast<A>(op_.normalizer.eps), rows.denominators);
    } else if constexpr (kCrossQuery) {
      slot_denominators(local.slot_denominators + g * slots_, slots, count,
                        static_cast<A>(op_.normalizer.eps), rows.denominators);
    } else {
      std::fill_n(rows.denominators, count, A(1));
    }
  }

  const char* function_;
  const Inputs<T>& in_;
  const QueryBlocks& query_blocks_;
  const KeyBlocks& key_blocks_;
  const Op& op_;
  HeadSizes sizes_;
  Index slots_;  // W of CrossQuery, 0 of the others
  Index group_;  // query blocks that are mixed together
  Summaries summaries_;
  SlotSums<A> slot_sums_;
  Workers<Worker> workers_;
};

/// Throws unless one head's arguments fit each other.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op>
void expect_bidirectional(const char* function, const Inputs<T>& in,
                          const QueryBlocks& query_blocks, const KeyBlocks& key_blocks,
                          const Op& op, std::type_identity_t<MatrixView<const T>> out,
                          const char* argument = "out") {
  expect_inputs(function, in, op, out, argument);
  expect_partition(function, "query_blocks", query_blocks, in.q.rows);
  expect_partition(function, "key_blocks", key_blocks, in.k.rows);
  if constexpr (std::same_as<normalizer_t<Op>, CrossQuery>) {
    expect_cross_query(function, query_blocks, key_blocks.blocks());
  }
}

/// The form without the checks, under the name of the function the user called.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op, class X>
void run_bidirectional(const char* function, const Inputs<T>& in, const QueryBlocks& query_blocks,
                       const KeyBlocks& key_blocks, const MixingMatrix<accumulator_t<T>>& mixing,
                       const Op& op, MatrixView<T> out, Workspace workspace, X& executor,
                       Workspace kept = {}) {
  Scratch scratch(function, workspace,
                  bidirectional_workspace_bytes(in, query_blocks, key_blocks, op, executor));
  if constexpr (kMayTile<T>) {
    if (kept.empty() && worth_tiling(head_sizes(in, op)) && tiles_granted() &&
        all_finite(mixing, query_blocks.blocks(), key_blocks.blocks())) {
      Arena arena = scratch.arena();  // a copy: the float form may need the same memory
      BidirectionalHead<T, QueryBlocks, KeyBlocks, Op, true> head(
          function, arena, nullptr, in, query_blocks, key_blocks, op, executor.workers());
      if (head.run(mixing, out, executor)) return;
    }
  }
  Arena kept_arena(kept.data());
  BidirectionalHead<T, QueryBlocks, KeyBlocks, Op>(function, scratch.arena(),
                                                   kept.empty() ? nullptr : &kept_arena, in,
                                                   query_blocks, key_blocks, op, executor.workers())
      .run(mixing, out, executor);
}

}  // namespace detail

template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, OperatorOn<T> Op, Executor X>
std::size_t bidirectional_workspace_bytes(const Inputs<T>& in, const QueryBlocks& query_blocks,
                                          const KeyBlocks& key_blocks, const Op& op,
                                          const X& executor) {
  detail::Arena counting;
  detail::BidirectionalHead<T, QueryBlocks, KeyBlocks, Op>(
      "bidirectional", counting, nullptr, in, query_blocks, key_blocks, op, executor.workers());
  if constexpr (detail::kMayTile<T>) {
    if (detail::worth_tiling(detail::head_sizes(in, op))) {
      detail::Arena tiled;
      detail::BidirectionalHead<T, QueryBlocks, KeyBlocks, Op, true>(
          "bidirectional", tiled, nullptr, in, query_blocks, key_blocks, op, executor.workers());
      return std::max(counting.bytes(), tiled.bytes());
    }
  }
  return counting.bytes();
}

template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, OperatorOn<T> Op, Executor X>
void bidirectional(const Inputs<T>& in, const QueryBlocks& query_blocks,
                   const KeyBlocks& key_blocks, const MixingMatrix<accumulator_t<T>>& mixing,
                   const Op& op, std::type_identity_t<MatrixView<T>> out, Workspace workspace,
                   X&& executor, Workspace kept) {
  constexpr const char* kName = "bidirectional";
  detail::expect_bidirectional(kName, in, query_blocks, key_blocks, op, out);
  detail::expect_mixing(kName, mixing, query_blocks.blocks(), key_blocks.blocks());
  detail::expect_kept(kName, kept, bidirectional_kept_bytes(in, key_blocks, op));
  detail::run_bidirectional(kName, in, query_blocks, key_blocks, mixing, op, out, workspace,
                            executor, kept);
}

template <Scalar T, Partition KeyBlocks, OperatorOn<T> Op>
std::size_t bidirectional_kept_bytes(const Inputs<T>& in, const KeyBlocks& key_blocks,
                                     const Op& op) {
  return detail::head_summaries_bytes("bidirectional", in, key_blocks.blocks(), op);
}

template <EigenDense Q, EigenDense K, EigenDense V, Partition Blocks,
          OperatorOn<typename Q::Scalar> Op>
auto bidirectional(const Q& q, const K& k, const V& v, const Blocks& blocks,
                   const MixingMatrix<accumulator_t<typename Q::Scalar>>& mixing, const Op& op)
    -> Matrix<typename Q::Scalar> {
  using T = typename Q::Scalar;
  Matrix<T> out(q.rows(), v.cols());
  bidirectional(Inputs<T>{.q = q, .k = k, .v = v}, blocks, blocks, mixing, op, out);
  return out;
}

}  // namespace mhla::inline MHLA_TARGET
