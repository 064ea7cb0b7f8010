#pragma once

/// \file
/// The query side of one causal block, with the gradients that its queries pass to its keys: shared
/// by the gradients of causal and of plain linear causal attention.

#include <algorithm>

#include "mhla/attention/causal_block.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/head_gradient.hpp"
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
  IntraBlockAdjoint<A> own_intra;  ///< of the denominator's own queries and keys

  /// \param longest  tokens of the longest block
  CausalGradientScratch(const char* function, Arena& arena, Index raw, const HeadSizes& n,
                        Index group, Index blocks, Index longest)
      : strips(function, arena, raw, n, group, blocks, 0),
        intra(function, arena, longest, n.features, n.values) {
    if (n.own()) {
      own_intra = IntraBlockAdjoint<A>(function, arena, longest, n.normalizer_features, 0);
    }
  }
};

/// Gradients of keys and values from the queries of their own block, for a whole sequence: the kept
/// tokens of a block are consecutive from the block's first row on.
template <class A>
struct IntraGradients {
  Rows<A> dkeys;      ///< [N,D]
  Rows<A> dvalues;    ///< [N,E]
  Rows<A> own_dkeys;  ///< [N,Dz]

  IntraGradients(const char* function, Arena& arena, Index n, const HeadSizes& sizes)
      : dkeys(function, arena, n, sizes.features),
        dvalues(function, arena, n, sizes.values),
        own_dkeys(function, arena, sizes.own() ? n : 0, sizes.normalizer_features) {}

  IntraGradients from(Index row) const {
    return {dkeys.below(row), dvalues.below(row), own_dkeys.below(row)};
  }
  void clear(Index rows, const HeadSizes& sizes) const {
    for (Index r = 0; r < rows; ++r) {
      std::fill_n(dkeys.row(r), sizes.features, A(0));
      std::fill_n(dvalues.row(r), sizes.values, A(0));
      if (sizes.own()) std::fill_n(own_dkeys.row(r), sizes.normalizer_features, A(0));
    }
  }

 private:
  IntraGradients(Rows<A> k, Rows<A> v, Rows<A> own) : dkeys(k), dvalues(v), own_dkeys(own) {}
};

/// Gradients that the queries of a block pass back.
template <class A>
struct CausalReadGradient {
  Rows<A> mixture;  ///< dS~_i by slabs, assigned
  A* key_sum;       ///< dz~_i, assigned
};

/// The query side of block i: adds dq, the gradient of the queries' weights and the gradients of
/// the block's own keys and values; returns dm_ii.
template <Scalar T, Partition P, class Op>
class CausalBlockGradient {
  using A = accumulator_t<T>;

 public:
  CausalBlockGradient(const HeadGradient<T, Op>& head, const Inputs<T>& in, const P& blocks,
                      Index i, const Op& op, const CausalGradientScratch<A>& scratch)
      : head_(head),
        in_(in),
        op_(op),
        scratch_(scratch),
        keys_(blocks, i, in.key_mask),
        queries_(blocks, i, in.query_mask) {
    scratch_.intra.clear();
    scratch_.own_intra.clear();
  }

  /// \param read  its mixture must be readable up to padded rows of D
  A run(const CausalRead<A>& read, const CausalReadGradient<A>& gradient, A* dweights,
        const IntraGradients<A>& keys) {
    const GradientScratch<A>& w = scratch_.strips;
    const HeadSizes& n = head_.sizes();
    const Rows<A> transposed = transpose_to(read.mixture, n.features, n.values, w.transposed);
    std::fill_n(gradient.key_sum, n.sum_features(), A(0));
    A dweight = 0;
    Start start = Start::kZero;
    queries_.next();
    do {  // at least once: a block without queries has the gradient 0
      const Index count = queries_.count();
      if (count > 0) append_keys(queries_.places()[count - 1]);
      head_.gather_queries(queries_.tokens(), count, w);
      scratch_.intra.score(w.queries, queries_.places(), count);
      if (head_.sums()) sum_weights(count, read);
      head_.divide(queries_.tokens(), count, w);
      head_.read_queries(count, transposed, w);
      scratch_.intra.multiply_values(w.dn);
      Prefetch next = head_.next_queries(queries_.ahead());
      const Strip& ahead = keys_.ahead();
      next.add(ahead.tokens, ahead.count, in_.k);
      next.add(ahead.tokens, ahead.count, in_.v);
      head_.accumulate_mixture(start, count, gradient.mixture, next, w);
      if (head_.sums()) differentiate_sums(count, read.weight);
      dweight += scratch_.intra.finish(read.weight, head_.sums() && !own() ? w.dsums : nullptr);
      if (head_.sums()) {
        head_.differentiate_key_sum(count, w.dsums, read.key_sum, w, gradient.key_sum);
        if (own()) dweight += add_own(read.weight, keys);
        head_.finish_own_queries(queries_.tokens(), count, dweights, w);
      }
      scratch_.intra.add_queries(w.dqueries);
      scratch_.intra.add_keys(w.queries, keys.dkeys);
      scratch_.intra.add_values(read.weight, w.dn, keys.dvalues);
      head_.finish_queries(queries_.tokens(), count, dweights, w);
      start = Start::kTarget;
    } while (queries_.next() > 0);
    return dweight;
  }

 private:
  bool own() const { return head_.own(); }

  /// Gathers the keys of slots 0..slot, in whole strips.
  void append_keys(Index slot) {
    const GradientScratch<A>& w = scratch_.strips;
    while (keys_.more() && keys_.ahead().places[0] <= slot) {
      const Index count = keys_.next();
      gather_features(in_.k, keys_.tokens(), count, op_.key_map, w.raw, w.keys);
      gather(in_.v, keys_.tokens(), count, w.values);
      scratch_.intra.append(w.keys, w.values, keys_.places(), count);
      if (!own()) continue;
      gather_features(in_.normalizer_k, keys_.tokens(), count, op_.key_map, w.raw, w.keys);
      scratch_.own_intra.append(w.keys, w.values, keys_.places(), count);
    }
  }

  /// r_t, of the earlier blocks and of its own.
  void sum_weights(Index count, const CausalRead<A>& read) {
    const GradientScratch<A>& w = scratch_.strips;
    head_.gather_own_queries(queries_.tokens(), count, w);
    head_.sum_weights(count, read.key_sum, w);
    if (own()) scratch_.own_intra.score(w.own_queries, queries_.places(), count);
    const A* const sums = (own() ? scratch_.own_intra : scratch_.intra).score_sums();
    for (Index s = 0; s < count; ++s) w.sums[s] += read.weight * sums[s];
  }

  /// dr_t.
  void differentiate_sums(Index count, A weight) {
    const GradientScratch<A>& w = scratch_.strips;
    for (Index s = 0; s < count; ++s) {
      w.products[s] += weight * scratch_.intra.product_sums()[s];
    }
    head_.differentiate_sums(count, w);
  }

  /// Adds dr_t's part for the denominator's own queries and keys; returns its part of dm_ii.
  A add_own(A weight, const IntraGradients<A>& keys) {
    const GradientScratch<A>& w = scratch_.strips;
    scratch_.own_intra.multiply_values(w.dn);  // without values: zeros
    const A dweight = scratch_.own_intra.finish(weight, w.dsums);
    scratch_.own_intra.add_queries(w.own_dqueries);
    scratch_.own_intra.add_keys(w.own_queries, keys.own_dkeys);
    return dweight;
  }

  const HeadGradient<T, Op>& head_;
  const Inputs<T>& in_;
  const Op& op_;
  CausalGradientScratch<A> scratch_;
  StripCursor<P> keys_, queries_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
