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
/// Cost: 4*N*D*E + 2*M^2*D*E flops; memory M*D*(E+1) numbers beside a few blocks of scratch.
/// Source: arXiv:2601.07832, section 4.1.

#include <algorithm>
#include <utility>

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/stage/summary.hpp"

namespace mhla::inline MHLA_TARGET {

/// Writes the output of one head into `out` [Nq,E], which must not overlap the inputs.
/// \param query_blocks  partition of the Nq queries into Mq blocks
/// \param key_blocks    partition of the Nk keys into Mk blocks
/// \param mixing        [Mq,Mk]
/// \param workspace     at least bidirectional_workspace_bytes(...), or empty to allocate
/// \param executor      splits over blocks
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op, class X = Sequential>
void bidirectional(const Inputs<T>& in, const QueryBlocks& query_blocks,
                   const KeyBlocks& key_blocks, const MixingMatrix<accumulator_t<T>>& mixing,
                   const Op& op, std::type_identity_t<MatrixView<T>> out, Workspace workspace = {},
                   X&& executor = {});

/// Bytes of workspace such a call needs; the data of `in` is not read.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op, class X = Sequential>
std::size_t bidirectional_workspace_bytes(const Inputs<T>& in, const QueryBlocks& query_blocks,
                                          const KeyBlocks& key_blocks, const Op& op,
                                          const X& executor = {});

/// Returns self-attention of Eigen matrices q [N,D], k [N,D], v [N,E], as [N,E].
template <EigenDense Q, EigenDense K, EigenDense V, Partition Blocks, class Op = Operator<>>
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
                      const HeadSizes& n, Index key_blocks, Index slots)
      : keys(function, arena, key_width, std::max(n.features, n.normalizer_features), n.values),
        queries(function, arena, query_width, n.features, n.normalizer_features, n.values),
        mixtures(function, arena, key_blocks, std::max(n.features, n.normalizer_features),
                 n.values),
        slot_denominators(arena.take<A>(
            function, checked_product(function, "workspace", {kGroupBlocks, slots}))) {}
};

/// One head of the bidirectional form: what is computed, on what, in which memory.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op>
class BidirectionalHead {
  using A = accumulator_t<T>;
  using Z = std::remove_cvref_t<decltype(std::declval<Op>().normalizer)>;
  static constexpr bool kCrossQuery = std::same_as<Z, CrossQuery>;

 public:
  BidirectionalHead(const char* function, Arena& arena, const Inputs<T>& in,
                    const QueryBlocks& query_blocks, const KeyBlocks& key_blocks, const Op& op,
                    Index workers)
      : function_(function),
        in_(in),
        query_blocks_(query_blocks),
        key_blocks_(key_blocks),
        op_(op),
        sizes_(head_sizes(in, op)),
        slots_(kCrossQuery ? largest_block(query_blocks) : 0) {
    const Index m = key_blocks.blocks();
    summaries_ = Summaries<A>(function, arena, m, sizes_.features, sizes_.values);
    own_key_sums_ = arena.take<A>(
        function, checked_product(function, "workspace", {m, sizes_.normalizer_features}));
    if constexpr (kCrossQuery) slot_sums_ = SlotSums<A>(function, arena, m, slots_);
    Arena counting;
    make_worker(counting);
    worker_bytes_ = static_cast<Index>(counting.bytes());
    workers_ = arena.take<std::byte>(
        function, checked_product(function, "workspace", {workers, worker_bytes_}));
  }

  template <class X>
  void run(const MixingMatrix<A>& mixing, MatrixView<T> out, X& executor) {
    executor.for_each(key_blocks_.blocks(), [&](Index b, Index w) { summarize_block(b, w); });
    if constexpr (kCrossQuery) {
      executor.for_each(query_blocks_.blocks(), [&](Index b, Index w) { sum_slots(b, w); });
    }
    const Index groups = (query_blocks_.blocks() + kGroupBlocks - 1) / kGroupBlocks;
    executor.for_each(groups, [&](Index g, Index w) {
      const Index begin = g * kGroupBlocks;
      read_group(mixing, begin, std::min(begin + kGroupBlocks, query_blocks_.blocks()), w, out);
    });
  }

 private:
  BidirectionalWorker<A> make_worker(Arena& arena) const {
    return {function_,
            arena,
            std::max(in_.q.cols, in_.normalizer_q.cols),
            std::max(in_.k.cols, in_.normalizer_k.cols),
            sizes_,
            key_blocks_.blocks(),
            slots_};
  }
  BidirectionalWorker<A> worker(Index w) const {
    Arena arena(workers_ + w * worker_bytes_);
    return make_worker(arena);
  }

  bool own_normalizer_inputs() const { return sizes_.normalizer_features > 0; }
  Index key_sum_features() const {
    return own_normalizer_inputs() ? sizes_.normalizer_features : sizes_.features;
  }
  /// z_b, of the denominator's own keys where it has some.
  A* key_sum(Index b) const {
    return (own_normalizer_inputs() ? own_key_sums_ : summaries_.key_sum) + b * key_sum_features();
  }

  void summarize_block(Index b, Index w) const {
    auto scratch = worker(w).keys;
    const bool from_same_keys = kUsesKeySums<Z> && !own_normalizer_inputs();
    summarize(in_.k, in_.v, key_blocks_, b, in_.key_mask, op_.key_map, scratch, summaries_.block(b),
              from_same_keys ? key_sum(b) : nullptr);
    if (kUsesKeySums<Z> && own_normalizer_inputs()) {
      sum_keys(in_.normalizer_k, key_blocks_, b, in_.key_mask, op_.key_map, scratch, key_sum(b));
    }
  }

  /// The queries the denominator reads.
  MatrixView<const T> denominator_queries() const {
    return own_normalizer_inputs() ? in_.normalizer_q : in_.q;
  }

  /// s_bw = phi(q_bw) . z_b for the slots of block b; 0 where the query is masked.
  void sum_slots(Index b, Index w) const {
    const auto scratch = worker(w).queries;
    std::fill_n(slot_sums_.block(b), slots_, A(0));
    StripCursor strip(query_blocks_, b, in_.query_mask);
    while (strip.next() > 0) {
      gather_queries(denominator_queries(), strip.tokens(), strip.count(), op_.query_map,
                     static_cast<A>(op_.scale), scratch.raw, scratch.normalizer_queries);
      for (Index s = 0; s < strip.count(); ++s) {
        slot_sums_.block(b)[strip.slots()[s]] =
            dot(scratch.normalizer_queries.row(s), key_sum(b), key_sum_features());
      }
    }
  }

  /// Mixes and reads out query blocks [begin, end).
  void read_group(const MixingMatrix<A>& mixing, Index begin, Index end, Index w,
                  MatrixView<T> out) const {
    auto scratch = worker(w);
    const MixingGroup<A> group(mixing, begin, end, Reach::kAll, summaries_.blocks,
                               scratch.mixtures.coefficients);
    mix_values(group, summaries_, scratch.mixtures);
    const Index dz = key_sum_features();
    if constexpr (std::same_as<Z, KeySum>) {
      mix_key_sums(group, key_sum(0), dz, scratch.mixtures);
    } else if constexpr (kCrossQuery) {
      group.mix({scratch.slot_denominators, slots_}, slot_sums_.sums, slots_, slots_);
    }
    for (Index i = begin; i < end; ++i) {
      read_block(i, scratch.queries, scratch.mixtures.block(i - begin),
                 scratch.mixtures.key_sum + (i - begin) * dz,
                 scratch.slot_denominators + (i - begin) * slots_, out);
    }
  }

  void read_block(Index i, const QueryScratch<A>& scratch, const A* mixture, const A* mixed_key_sum,
                  const A* slot_denominators, MatrixView<T> out) const {
    const A factor = static_cast<A>(op_.scale);
    clear_masked(query_blocks_, i, in_.query_mask, out);
    StripCursor strip(query_blocks_, i, in_.query_mask);
    while (strip.next() > 0) {
      const Index count = strip.count();
      gather_queries(in_.q, strip.tokens(), count, op_.query_map, factor, scratch.raw,
                     scratch.queries);
      read_mixture(scratch.queries, count, sizes_.features, mixture, sizes_.values,
                   scratch.outputs);
      if constexpr (std::same_as<Z, KeySum>) {
        if (own_normalizer_inputs()) {
          gather_queries(in_.normalizer_q, strip.tokens(), count, op_.query_map, factor,
                         scratch.raw, scratch.normalizer_queries);
        }
        key_sum_denominators(scratch.normalizer_queries, count, key_sum_features(), mixed_key_sum,
                             static_cast<A>(op_.normalizer.eps), scratch.denominators);
      } else if constexpr (kCrossQuery) {
        for (Index s = 0; s < count; ++s) {
          scratch.denominators[s] =
              slot_denominators[strip.slots()[s]] + static_cast<A>(op_.normalizer.eps);
        }
      }
      if constexpr (kUsesKeySums<Z>) {
        divide_rows(scratch.outputs, count, sizes_.values, scratch.denominators);
      }
      scatter(scratch.outputs, strip.tokens(), count, out);
    }
  }

  const char* function_;
  const Inputs<T>& in_;
  const QueryBlocks& query_blocks_;
  const KeyBlocks& key_blocks_;
  const Op& op_;
  HeadSizes sizes_;
  Index slots_;
  Summaries<A> summaries_;
  A* own_key_sums_ = nullptr;  // [M, Dz]
  SlotSums<A> slot_sums_;
  Index worker_bytes_ = 0;
  std::byte* workers_ = nullptr;
};

/// Throws unless one head's arguments fit each other.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op>
void expect_bidirectional(const char* function, const Inputs<T>& in,
                          const QueryBlocks& query_blocks, const KeyBlocks& key_blocks,
                          const Op& op, MatrixView<T> out) {
  expect_inputs(function, in, op, out);
  expect_partition(function, "query_blocks", query_blocks, in.q.rows);
  expect_partition(function, "key_blocks", key_blocks, in.k.rows);
  if constexpr (std::same_as<std::remove_cvref_t<decltype(op.normalizer)>, CrossQuery>) {
    expect_cross_query(function, query_blocks, key_blocks.blocks());
  }
}

/// The form without the checks.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op, class X>
void run_bidirectional(const Inputs<T>& in, const QueryBlocks& query_blocks,
                       const KeyBlocks& key_blocks, const MixingMatrix<accumulator_t<T>>& mixing,
                       const Op& op, MatrixView<T> out, Workspace workspace, X& executor) {
  constexpr const char* kName = "bidirectional";
  Scratch scratch(kName, workspace,
                  bidirectional_workspace_bytes(in, query_blocks, key_blocks, op, executor));
  BidirectionalHead<T, QueryBlocks, KeyBlocks, Op>(kName, scratch.arena(), in, query_blocks,
                                                   key_blocks, op, executor.workers())
      .run(mixing, out, executor);
}

}  // namespace detail

template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op, class X>
std::size_t bidirectional_workspace_bytes(const Inputs<T>& in, const QueryBlocks& query_blocks,
                                          const KeyBlocks& key_blocks, const Op& op,
                                          const X& executor) {
  detail::Arena counting;
  detail::BidirectionalHead<T, QueryBlocks, KeyBlocks, Op>(
      "bidirectional", counting, in, query_blocks, key_blocks, op, executor.workers());
  return counting.bytes();
}

template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op, class X>
void bidirectional(const Inputs<T>& in, const QueryBlocks& query_blocks,
                   const KeyBlocks& key_blocks, const MixingMatrix<accumulator_t<T>>& mixing,
                   const Op& op, std::type_identity_t<MatrixView<T>> out, Workspace workspace,
                   X&& executor) {
  constexpr const char* kName = "bidirectional";
  detail::expect_bidirectional(kName, in, query_blocks, key_blocks, op, out);
  detail::expect_mixing(kName, mixing, query_blocks.blocks(), key_blocks.blocks());
  detail::run_bidirectional(in, query_blocks, key_blocks, mixing, op, out, workspace, executor);
}

template <EigenDense Q, EigenDense K, EigenDense V, Partition Blocks, class Op>
auto bidirectional(const Q& q, const K& k, const V& v, const Blocks& blocks,
                   const MixingMatrix<accumulator_t<typename Q::Scalar>>& mixing, const Op& op)
    -> Matrix<typename Q::Scalar> {
  using T = typename Q::Scalar;
  Matrix<T> out(q.rows(), v.cols());
  bidirectional(Inputs<T>{.q = q, .k = k, .v = v}, blocks, blocks, mixing, op, out);
  return out;
}

}  // namespace mhla::inline MHLA_TARGET
