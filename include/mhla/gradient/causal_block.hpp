#pragma once

/// \file
/// The query side of one causal block, with the gradients that its queries pass to its keys. The
/// gradients of causal and of plain linear causal attention share it.

#include <algorithm>

#include "mhla/attention/causal_block.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/head_gradient.hpp"
#include "mhla/gradient/strip_sums.hpp"
#include "mhla/stage/intra_block.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Scratch of one worker of the causal gradients.
template <class A>
struct CausalGradientScratch {
  GradientScratch<A> strips;
  IntraBlockAdjoint<A> intra;
  IntraBlockAdjoint<A> normalizer_intra;  ///< of the denominator's own queries and keys
  StripSums<A> sums;

  /// \param longest  tokens of the longest block
  CausalGradientScratch(const char* function, Arena& arena, Index raw, const HeadSizes& n,
                        Index group, Index blocks, Index longest)
      : strips(function, arena, raw, n, group, blocks, 0),
        intra(function, arena, n.features, n.values),
        sums(function, arena, n, longest) {
    if (n.separate_normalizer()) {
      normalizer_intra = IntraBlockAdjoint<A>(function, arena, n.normalizer_features, 0);
    }
  }
};

/// Gradients of keys and values from the queries of the same block, for a whole sequence. The kept
/// tokens of a block are consecutive from the block's first row on.
template <class A>
struct IntraGradients {
  Rows<A> dkeys;             ///< [N,D]
  Rows<A> dvalues;           ///< [N,E]
  Rows<A> normalizer_dkeys;  ///< [N,Dz]

  IntraGradients(const char* function, Arena& arena, Index n, const HeadSizes& sizes)
      : dkeys(function, arena, n, sizes.features),
        dvalues(function, arena, n, sizes.values),
        normalizer_dkeys(function, arena, sizes.separate_normalizer() ? n : 0,
                         sizes.normalizer_features) {}

  IntraGradients from(Index row) const {
    return {dkeys.below(row), dvalues.below(row), normalizer_dkeys.below(row)};
  }
  void clear(Index rows, const HeadSizes& sizes) const {
    for (Index r = 0; r < rows; ++r) {
      std::fill_n(dkeys.row(r), sizes.features, A(0));
      std::fill_n(dvalues.row(r), sizes.values, A(0));
      if (sizes.separate_normalizer()) {
        std::fill_n(normalizer_dkeys.row(r), sizes.normalizer_features, A(0));
      }
    }
  }

 private:
  IntraGradients(Rows<A> k, Rows<A> v, Rows<A> normalizer)
      : dkeys(k), dvalues(v), normalizer_dkeys(normalizer) {}
};

/// Gradients that the queries of a block pass back.
template <class A>
struct CausalReadGradient {
  Rows<A> mixture;  ///< dS~_i by slabs, assigned
  A* key_sum;       ///< dz~_i, assigned
};

/// The query side of block i: adds dq, the gradient of the queries' weights and the gradients of
/// the keys and values of the block; returns dm_ii. First it sums the earlier keys and values that
/// each strip reads. Then it processes strips last to first, so key gradients include all later
/// queries:
///
///     H         = sum phi(q_t) dn_t^T     of the queries of later strips     [D,E]
///     dphi(k_j) = m_ii H v_j + ..         dv_j = m_ii H^T phi(k_j) + ..
///     dm_ii     = sum_j phi(k_j)^T H v_j + ..
template <Scalar T, Partition P, class Op>
class CausalBlockGradient {
  using A = accumulator_t<T>;

 public:
  CausalBlockGradient(const HeadGradient<T, Op>& head, const Inputs<T>& in, const P& blocks,
                      Index i, const Op& op, const CausalGradientScratch<A>& scratch)
      : head_(head), in_(in), blocks_(blocks), block_(i), op_(op), scratch_(scratch) {}

  /// \param read  its matrix must be readable up to padded rows of D
  A run(const CausalSums<A>& read, const CausalReadGradient<A>& gradient, A* dweights,
        const IntraGradients<A>& keys) {
    const HeadSizes& n = head_.sizes();
    std::fill_n(gradient.key_sum, n.sum_features(), A(0));
    const Index strips = sums().add_up(in_, blocks_, block_, op_, rows().key_scratch());
    A dweight = 0;
    bool later = false;  // true if queries of later strips have gradients
    for (Index s = strips - 1; s >= 0; --s) {
      dweight += gather_keys(s, later, read.weight, gradient.key_sum, keys.from(s * kStripTokens));
      if (s == 0 && later) sums().copy_later(gradient.mixture);
      dweight += read_strip(s, later, sums().before(s, read),
                            {s == 0 ? gradient.mixture : sums().later_by_slabs(), gradient.key_sum},
                            dweights, keys.from(s * kStripTokens));
    }
    return dweight;
  }

 private:
  const GradientScratch<A>& rows() const { return scratch_.strips; }
  bool separate_normalizer() const { return head_.separate_normalizer(); }
  const StripSums<A>& sums() const { return scratch_.sums; }

  void gather_strip(MatrixView<const T> k, const Strip& strip) {
    gather_features(k, strip.tokens, strip.count, op_.key_map, rows().raw, rows().keys);
  }

  /// Gathers the keys and values of strip s, whose gradients are assigned from the queries of later
  /// strips. Returns these queries' part of dm_ii.
  A gather_keys(Index s, bool later, A weight, const A* later_key_sum,
                const IntraGradients<A>& to) {
    const GradientScratch<A>& w = rows();
    Strip strip;
    read_slots(blocks_, block_, in_.key_mask, sums().begin(s), sums().end(s), strip);
    const Index count = strip.count;
    A dweight = 0;
    if (!later) to.clear(count, head_.sizes());
    if (separate_normalizer()) {
      gather_strip(in_.normalizer_k, strip);
      if (later)
        dweight +=
            add_later_normalizer_gradients(count, weight, later_key_sum, to.normalizer_dkeys);
      scratch_.normalizer_intra.set(w.keys, w.values, strip.places, count);
    }
    gather_strip(in_.k, strip);
    gather(in_.v, strip.tokens, count, w.values);
    const A* const key_sum = head_.sums() && !separate_normalizer() ? later_key_sum : nullptr;
    if (later) dweight += add_later_gradients(count, weight, key_sum, to);
    scratch_.intra.set(w.keys, w.values, strip.places, count);
    return dweight;
  }
  A add_later_gradients(Index count, A weight, const A* later_key_sum,
                        const IntraGradients<A>& to) const {
    const HeadSizes& n = head_.sizes();
    const GradientScratch<A>& w = rows();
    const A* const later = sums().later();
    const Rows<A> transposed = transpose_to(later, n.features, n.values, w.transposed);
    summary_adjoint_keys<A>(Start::kZero, w.values, count, n.features, n.values, transposed,
                            later_key_sum, to.dkeys);
    summary_adjoint_values<A>(Start::kZero, w.keys, count, n.features, n.values, {later, n.values},
                              to.dvalues);
    A dweight = 0;
    for (Index j = 0; j < count; ++j) {
      dweight += dot<A>(w.keys.row(j), to.dkeys.row(j), n.features);
      scale(weight, to.dkeys.row(j), n.features);
      scale(weight, to.dvalues.row(j), n.values);
    }
    return dweight;
  }
  A add_later_normalizer_gradients(Index count, A weight, const A* later_key_sum,
                                   Rows<A> dkeys) const {
    const Index dz = head_.sizes().normalizer_features;
    A dweight = 0;
    for (Index j = 0; j < count; ++j) {
      dweight += dot<A>(rows().keys.row(j), later_key_sum, dz);
      std::fill_n(dkeys.row(j), dz, A(0));
      add_scaled(weight, later_key_sum, dkeys.row(j), dz);
    }
    return dweight;
  }

  /// Processes the queries of strip s. Returns their part of dm_ii.
  /// \param later  true if `gradient` holds the part of later strips, to which this adds; set if
  ///     this strip adds something
  A read_strip(Index s, bool& later, const CausalSums<A>& read,
               const CausalReadGradient<A>& gradient, A* dweights, const IntraGradients<A>& keys) {
    const GradientScratch<A>& w = rows();
    const HeadSizes& n = head_.sizes();
    const Rows<A> transposed = transpose_to(read.matrix, n.features, n.values, w.transposed);
    Strip queries, ahead;
    read_ahead(s, ahead);
    A dweight = 0;
    Start start = later ? Start::kTarget : Start::kZero;
    Index slot = sums().begin(s);
    do {  // at least once: a block without queries has the gradient 0
      slot = read_slots(blocks_, block_, in_.query_mask, slot, sums().end(s), queries);
      head_.select_queries(queries, nullptr, queries);
      const Index count = queries.count;
      later = later || count > 0;
      head_.gather_queries(queries.tokens, count, w);
      scratch_.intra.score(w.queries, queries.places, count);
      if (head_.sums()) sum_weights(queries, read);
      head_.divide(queries.tokens, count, w);
      head_.read_queries(count, transposed, w);
      scratch_.intra.multiply_values(w.dn);
      Prefetch next = head_.next_queries(ahead);
      next.add(ahead.tokens, ahead.count, in_.k);
      next.add(ahead.tokens, ahead.count, in_.v);
      next.add(read.next, n.features * n.values);
      head_.accumulate_mixture(start, count, gradient.mixture, next, w);
      if (head_.sums()) differentiate_sums(count, read.weight);
      dweight += scratch_.intra.finish(read.weight,
                                       head_.sums() && !separate_normalizer() ? w.dsums : nullptr);
      if (head_.sums()) {
        head_.differentiate_key_sum(count, w.dsums, read.key_sum, w, gradient.key_sum);
        if (separate_normalizer()) dweight += add_normalizer(read.weight, keys);
        head_.finish_normalizer_queries(queries.tokens, count, dweights, w);
      }
      scratch_.intra.add_queries(w.dqueries);
      scratch_.intra.add_keys(w.queries, keys.dkeys);
      scratch_.intra.add_values(read.weight, w.dn, keys.dvalues);
      head_.finish_queries(queries.tokens, count, dweights, w);
      start = Start::kTarget;
    } while (slot < sums().end(s));
    return dweight;
  }
  /// Tokens to prefetch: those before strip s, or the first tokens of the next block.
  void read_ahead(Index s, Strip& strip) const {
    strip.count = 0;
    if (s > 0) {
      read_slots(blocks_, block_, in_.key_mask, sums().begin(s - 1), sums().end(s - 1), strip);
    } else if (block_ + 1 < blocks_.blocks()) {
      read_slots(blocks_, block_ + 1, in_.key_mask, 0, blocks_.block_size(block_ + 1), strip);
    }
  }

  /// r_t, of earlier tokens and of the strip.
  void sum_weights(const Strip& queries, const CausalSums<A>& read) {
    const GradientScratch<A>& w = rows();
    const Index count = queries.count;
    head_.gather_normalizer_queries(queries.tokens, count, w);
    head_.sum_weights(count, read.key_sum, w);
    if (separate_normalizer()) {
      scratch_.normalizer_intra.score(w.normalizer_queries, queries.places, count);
    }
    const A* const sums =
        (separate_normalizer() ? scratch_.normalizer_intra : scratch_.intra).score_sums();
    for (Index r = 0; r < count; ++r) w.sums[r] += read.weight * sums[r];
  }

  /// dr_t.
  void differentiate_sums(Index count, A weight) {
    const GradientScratch<A>& w = rows();
    for (Index r = 0; r < count; ++r) {
      w.products[r] += weight * scratch_.intra.product_sums()[r];
    }
    head_.differentiate_sums(count, w);
  }

  /// Adds dr_t's part for the denominator's own queries and keys; returns its part of dm_ii.
  A add_normalizer(A weight, const IntraGradients<A>& keys) {
    const GradientScratch<A>& w = rows();
    scratch_.normalizer_intra.multiply_values(w.dn);  // without values: zeros
    const A dweight = scratch_.normalizer_intra.finish(weight, w.dsums);
    scratch_.normalizer_intra.add_queries(w.normalizer_dqueries);
    scratch_.normalizer_intra.add_keys(w.normalizer_queries, keys.normalizer_dkeys);
    return dweight;
  }

  const HeadGradient<T, Op>& head_;
  const Inputs<T>& in_;
  const P& blocks_;
  Index block_;
  const Op& op_;
  CausalGradientScratch<A> scratch_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
