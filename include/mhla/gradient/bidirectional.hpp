#pragma once

/// \file
/// The gradient of bidirectional attention (attention/bidirectional.hpp): given do_t, the gradients
/// of q, k, v, of the mixing matrix and of the weights of the feature maps.
///
///     dn_t    = scale do_t / den_t,   dr_t = -scale phi(q_t) . S~_i dn_t / den_t
///     dphi(q) = S~_i dn_t + dr_t z~_i                                read_out.hpp, normalizer.hpp
///     dS~_i   = sum_t phi(q_t) dn_t^T,   dS_b = sum_i m_ib dS~_i     mixing.hpp
///     dm_ib   = <S_b, dS~_i> + z_b . dz~_i
///     dphi(k) = dS_b v_t + dz_b,   dv_t = dS_b^T phi(k_t)            summary.hpp
///
/// The forward's output is not needed. Its summaries S_b and z_b are computed once more, or, at the
/// caller's choice, kept by the forward in memory of bidirectional_kept_bytes(...): M*D*(E+1)
/// numbers. The results are the same bits either way.
/// Cost: 10*N*D*E + 6*M^2*D*E flops, 2*N*D*E less with kept summaries; the forward's are
/// 4*N*D*E + 2*M^2*D*E. Memory: 2*M*D*(E+1) numbers and as many for mixtures as the forward, and
/// N*D for CrossQuery.
/// Source: derived from arXiv:2601.07832, eqs. (3) and (4).

#include <algorithm>
#include <utility>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/gradient/head_gradient.hpp"

namespace mhla::inline MHLA_TARGET {

/// Adds the gradients of one head to `gradients` and `parameters`.
/// \param dout       [Nq,E] gradient of the output; rows of masked queries are not read
/// \param workspace  at least bidirectional_gradient_workspace_bytes(...), or empty to allocate
/// \param executor   splits over blocks; results do not depend on it
/// \param kept       what the forward kept of the same inputs, or empty
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, DifferentiableOperatorOn<T> Op,
          Executor X = Sequential>
void bidirectional_gradient(const Inputs<T>& in, const QueryBlocks& query_blocks,
                            const KeyBlocks& key_blocks,
                            const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                            std::type_identity_t<MatrixView<const T>> dout,
                            const Gradients<T>& gradients,
                            const ParameterGradients<accumulator_t<T>>& parameters = {},
                            Workspace workspace = {}, X&& executor = {}, Workspace kept = {});

/// Bytes of workspace such a call needs; the data of `in` and `mixing` is not read.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, DifferentiableOperatorOn<T> Op,
          Executor X = Sequential>
std::size_t bidirectional_gradient_workspace_bytes(const Inputs<T>& in,
                                                   const QueryBlocks& query_blocks,
                                                   const KeyBlocks& key_blocks,
                                                   const MixingMatrix<accumulator_t<T>>& mixing,
                                                   const Op& op, const X& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// One head of the backward form.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op>
class BidirectionalGradient {
  using A = accumulator_t<T>;
  using Z = normalizer_t<Op>;
  using Worker = GradientScratch<A>;
  static constexpr bool kKeySum = std::same_as<Z, KeySum>;
  static constexpr bool kCrossQuery = std::same_as<Z, CrossQuery>;

 public:
  /// \param kept  where the summaries lie; null for the arena
  BidirectionalGradient(const char* function, Arena& arena, Arena* kept, const Inputs<T>& in,
                        const QueryBlocks& query_blocks, const KeyBlocks& key_blocks, const Op& op,
                        Index workers)
      : in_(in),
        query_blocks_(query_blocks),
        key_blocks_(key_blocks),
        op_(op),
        head_(in, op),
        slots_(kCrossQuery ? largest_block(query_blocks) : 0),
        query_group_(gradient_group<A>(op, query_blocks.blocks(), sizes(), workers)),
        key_group_(gradient_group<A>(op, key_blocks.blocks(), sizes(), workers)),
        summaries_(function, kept == nullptr ? arena : *kept, sizes(), key_blocks.blocks()),
        dmixtures_(function, arena, query_blocks.blocks(), sizes().features, sizes().values),
        dkey_sums_(arena.take<A>(
            function, {std::max(query_blocks.blocks(), key_blocks.blocks()), sum_features()})),
        slot_sums_(function, arena, key_blocks.blocks(), slots_),
        dslot_sums_(function, arena, query_blocks.blocks(), slots_),
        dqueries_(function, arena, kCrossQuery && !head_.own() ? in.q.rows : 0, sizes().features),
        query_parts_(function, arena, groups_of(query_blocks.blocks(), query_group_),
                     op.query_map.weights()),
        key_parts_(function, arena, groups_of(key_blocks.blocks(), key_group_),
                   op.key_map.weights()),
        workers_(function, arena, workers, [&](Arena& a) {
          return Worker(function, a, head_.width(), sizes(), std::max(query_group_, key_group_),
                        std::max(query_blocks.blocks(), key_blocks.blocks()), slots_);
        }) {}

  /// \param summarized  whether the summaries are there already
  template <class X>
  void run(const MixingMatrix<A>& mixing, MatrixView<const T> dout, const Gradients<T>& gradients,
           const ParameterSums<A>& sums, bool summarized, X& executor) {
    const Index mq = query_blocks_.blocks(), mk = key_blocks_.blocks();
    head_.set(dout, gradients);
    query_parts_.start(sums.query_map);
    key_parts_.start(sums.key_map);
    if (!summarized) {
      executor.for_each(mk, [&](Index b, Index w) {
        const Worker& local = workers_[w];
        summaries_.summarize_block(in_, key_blocks_, b, op_,
                                   KeyScratch<A>(local.raw, local.keys, local.values));
      });
    }
    if constexpr (kCrossQuery) {
      executor.for_each(mq, [&](Index b, Index w) { sum_slots(b, workers_[w]); });
    }
    executor.for_each(groups_of(mq, query_group_), [&](Index g, Index w) {
      query_group(mixing, g, std::min((g + 1) * query_group_, mq), sums.mixing, workers_[w]);
    });
    if constexpr (kCrossQuery) {
      executor.for_each(groups_of(mq, query_group_), [&](Index g, Index w) {
        slot_group(mixing, g, std::min((g + 1) * query_group_, mq), workers_[w]);
      });
    }
    executor.for_each(groups_of(mk, key_group_), [&](Index g, Index w) {
      key_group(mixing, g, std::min((g + 1) * key_group_, mk), workers_[w]);
    });
    query_parts_.finish(sums.query_map);
    key_parts_.finish(sums.key_map);
  }

 private:
  const HeadSizes& sizes() const { return head_.sizes(); }
  /// Features of the key sums, where there are any.
  Index sum_features() const { return kUsesKeySums<Z> ? key_sum_features(sizes()) : 0; }
  /// KeySum: dz~ of query block i. CrossQuery: dz of key block b.
  A* dkey_sum(Index b) const { return dkey_sums_ + b * sum_features(); }

  /// s_bw = phi(q_bw) . z_b for the slots of block b; 0 where the query is masked.
  void sum_slots(Index b, const Worker& w) const {
    std::fill_n(slot_sums_.block(b), slots_, A(0));
    std::fill_n(dslot_sums_.block(b), slots_, A(0));
    StripCursor strip(query_blocks_, b, in_.query_mask);
    while (strip.next() > 0) {
      gather_denominator_queries(strip.tokens(), strip.count(), w);
      for (Index s = 0; s < strip.count(); ++s) {
        slot_sums_.block(b)[strip.slots()[s]] =
            dot(head_.denominator_queries(w).row(s), summaries_.key_sum(b), sum_features());
      }
    }
  }
  void gather_denominator_queries(const Index* tokens, Index count, const Worker& w) const {
    if (head_.own()) {
      head_.gather_own_queries(tokens, count, w);
    } else {
      head_.gather_queries(tokens, count, w);
    }
  }

  /// The query side of the blocks of group g, which ends before `end`.
  void query_group(const MixingMatrix<A>& mixing, Index g, Index end, A* dmixing,
                   const Worker& w) const {
    const Index begin = g * query_group_;
    const MixingGroup<A> group(mixing, begin, end, Reach::kAll, key_blocks_.blocks(),
                               w.mixtures.coefficients);
    summaries_.mix_group(group, w.mixtures);
    if constexpr (kCrossQuery) {
      group.mix({w.slots, slots_}, {slot_sums_.sums, slots_}, slots_);
    }
    for (Index i = begin; i < end; ++i) query_block(i, i - begin, query_parts_.part(g), w);
    if (dmixing == nullptr) return;
    MixingGradient<A> gradient = w.dmixing;
    gradient.start(mixing, begin, end, Reach::kAll, key_blocks_.blocks());
    gradient.add(dmixtures_, summaries_.values());
    if constexpr (kKeySum) {
      gradient.add({dkey_sum(begin), sum_features()}, summaries_.key_sums(), sum_features());
    }
    if constexpr (kCrossQuery) {
      gradient.add({dslot_sums_.block(begin), slots_}, {slot_sums_.sums, slots_}, slots_);
    }
    gradient.store(dmixing);
  }

  /// The query side of block i, the r-th of its group.
  void query_block(Index i, Index r, A* dweights, const Worker& w) const {
    const RightOperand<A> transposed =
        transpose_to(w.mixtures.block(r), sizes().features, sizes().values, w.transposed);
    const A* const mixed_key_sum = w.mixtures.key_sum + r * sum_features();
    if constexpr (kKeySum) std::fill_n(dkey_sum(i), sum_features(), A(0));
    Start start = Start::kZero;
    StripCursor strip(query_blocks_, i, in_.query_mask);
    strip.next();
    do {  // at least once: a block without tokens has the gradient 0
      const Index count = strip.count();
      const Index* const tokens = strip.tokens();
      head_.gather_queries(tokens, count, w);
      if constexpr (kKeySum) {
        head_.gather_own_queries(tokens, count, w);
        head_.sum_weights(count, mixed_key_sum, w);
      }
      if constexpr (kCrossQuery) {
        slot_denominators(w.slots + r * slots_, strip.slots(), count, A(0), w.sums);
      }
      head_.divide(tokens, count, w);
      head_.read_queries(count, transposed, w);
      head_.accumulate_mixture(start, count, dmixtures_.block(i),
                               head_.query_lookahead(strip.ahead()), w);
      head_.differentiate_sums(count, w);
      if constexpr (kKeySum) {
        head_.differentiate_key_sum(count, w.dsums, mixed_key_sum, w, dkey_sum(i));
        head_.finish_own_queries(tokens, count, dweights, w);
      }
      if constexpr (kCrossQuery) {
        for (Index s = 0; s < count; ++s) dslot_sums_.block(i)[strip.slots()[s]] = w.dsums[s];
      }
      if (kCrossQuery && !head_.own()) {  // their adjoint comes when all of dphi(q) is there
        for (Index s = 0; s < count; ++s) {
          std::copy_n(w.dqueries.row(s), sizes().features, dqueries_.row(tokens[s]));
        }
      } else {
        head_.finish_queries(tokens, count, dweights, w);
      }
      start = Start::kTarget;
    } while (strip.next() > 0);
  }

  /// The adjoint of s_bw for the blocks of group g, which ends before `end`.
  void slot_group(const MixingMatrix<A>& mixing, Index g, Index end, const Worker& w) const {
    const Index begin = g * query_group_;
    const auto group = MixingGroup<A>::of_columns(mixing, begin, end, Reach::kAll,
                                                  query_blocks_.blocks(), w.mixtures.coefficients);
    group.mix({w.slots, slots_}, {dslot_sums_.sums, slots_}, slots_);
    for (Index b = begin; b < end; ++b) {
      slot_block(b, w.slots + (b - begin) * slots_, query_parts_.part(g), w);
    }
  }

  /// dphi of the queries of block b through s_bw, and dz_b.
  void slot_block(Index b, const A* dslots, A* dweights, const Worker& w) const {
    std::fill_n(dkey_sum(b), sum_features(), A(0));
    StripCursor strip(query_blocks_, b, in_.query_mask);
    while (strip.next() > 0) {
      const Index count = strip.count();
      gather_denominator_queries(strip.tokens(), count, w);
      for (Index s = 0; s < count; ++s) {
        w.dsums[s] = dslots[strip.slots()[s]];
        if (head_.own()) continue;
        std::copy_n(dqueries_.row(strip.tokens()[s]), sizes().features, w.dqueries.row(s));
      }
      head_.differentiate_key_sum(count, w.dsums, summaries_.key_sum(b), w, dkey_sum(b));
      head_.finish_own_queries(strip.tokens(), count, dweights, w);
      if (!head_.own()) head_.finish_queries(strip.tokens(), count, dweights, w);
    }
  }

  /// The key side of the blocks of group g, which ends before `end`.
  void key_group(const MixingMatrix<A>& mixing, Index g, Index end, const Worker& w) const {
    const Index begin = g * key_group_;
    const auto group = MixingGroup<A>::of_columns(mixing, begin, end, Reach::kAll,
                                                  query_blocks_.blocks(), w.mixtures.coefficients);
    mix_values(group, dmixtures_, w.mixtures);
    if constexpr (kKeySum) mix_key_sums(group, dkey_sums_, sum_features(), w.mixtures);
    for (Index b = begin; b < end; ++b) {
      const A* const dz = kKeySum       ? w.mixtures.key_sum + (b - begin) * sum_features()
                          : kCrossQuery ? dkey_sum(b)
                                        : nullptr;
      head_.differentiate_keys(key_blocks_, b, w.mixtures.block(b - begin), dz, key_parts_.part(g),
                               w);
    }
  }

  const Inputs<T>& in_;
  const QueryBlocks& query_blocks_;
  const KeyBlocks& key_blocks_;
  const Op& op_;
  HeadGradient<T, Op> head_;
  Index slots_;                     // W of CrossQuery, 0 of the others
  Index query_group_, key_group_;   // blocks that are mixed together
  HeadSummaries<T, Op> summaries_;  // S, z
  Summaries<A> dmixtures_;          // dS~
  A* dkey_sums_;                    // KeySum: dz~ of query blocks. CrossQuery: dz of key blocks
  SlotSums<A> slot_sums_;           // CrossQuery: s_bw
  SlotSums<A> dslot_sums_;          // CrossQuery: dr of the query in block i, slot w
  Rows<A> dqueries_;                // CrossQuery: dphi(q) of the numerator [Nq,D]
  WeightParts<A> query_parts_, key_parts_;
  Workers<Worker> workers_;
};

/// Throws unless one head's arguments fit each other; the mixing matrix apart.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op>
void expect_bidirectional_gradient(const char* function, const Inputs<T>& in,
                                   const QueryBlocks& query_blocks, const KeyBlocks& key_blocks,
                                   const Op& op, MatrixView<const T> dout,
                                   const Gradients<T>& gradients) {
  expect_bidirectional(function, in, query_blocks, key_blocks, op, dout, "dout");
  expect_gradients(function, in, gradients);
}

/// The form without the checks, under the name of the function the user called.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op, class X>
void run_bidirectional_gradient(const char* function, const Inputs<T>& in,
                                const QueryBlocks& query_blocks, const KeyBlocks& key_blocks,
                                const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                                MatrixView<const T> dout, const Gradients<T>& gradients,
                                const ParameterSums<accumulator_t<T>>& sums, Workspace workspace,
                                X& executor, Workspace kept) {
  Scratch scratch(
      function, workspace,
      bidirectional_gradient_workspace_bytes(in, query_blocks, key_blocks, mixing, op, executor));
  Arena kept_arena(kept.data());
  BidirectionalGradient<T, QueryBlocks, KeyBlocks, Op>(
      function, scratch.arena(), kept.empty() ? nullptr : &kept_arena, in, query_blocks, key_blocks,
      op, executor.workers())
      .run(mixing, dout, gradients, sums, !kept.empty(), executor);
}

}  // namespace detail

template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, DifferentiableOperatorOn<T> Op,
          Executor X>
std::size_t bidirectional_gradient_workspace_bytes(const Inputs<T>& in,
                                                   const QueryBlocks& query_blocks,
                                                   const KeyBlocks& key_blocks,
                                                   const MixingMatrix<accumulator_t<T>>& /*mixing*/,
                                                   const Op& op, const X& executor) {
  detail::Arena counting;
  detail::BidirectionalGradient<T, QueryBlocks, KeyBlocks, Op>("bidirectional_gradient", counting,
                                                               nullptr, in, query_blocks,
                                                               key_blocks, op, executor.workers());
  return counting.bytes();
}

template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, DifferentiableOperatorOn<T> Op,
          Executor X>
void bidirectional_gradient(const Inputs<T>& in, const QueryBlocks& query_blocks,
                            const KeyBlocks& key_blocks,
                            const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                            std::type_identity_t<MatrixView<const T>> dout,
                            const Gradients<T>& gradients,
                            const ParameterGradients<accumulator_t<T>>& parameters,
                            Workspace workspace, X&& executor, Workspace kept) {
  constexpr const char* kName = "bidirectional_gradient";
  detail::expect_bidirectional_gradient(kName, in, query_blocks, key_blocks, op, dout, gradients);
  detail::expect_mixing(kName, mixing, query_blocks.blocks(), key_blocks.blocks());
  detail::expect_parameters(kName, mixing, op, parameters);
  detail::expect_kept(kName, kept, bidirectional_kept_bytes(in, key_blocks, op));
  detail::run_bidirectional_gradient(kName, in, query_blocks, key_blocks, mixing, op, dout,
                                     gradients, detail::sums_of(parameters), workspace, executor,
                                     kept);
}

}  // namespace mhla::inline MHLA_TARGET
