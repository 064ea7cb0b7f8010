#pragma once

/// \file
/// One head's gradient, strip by strip; the bidirectional and the causal form share it.
///
/// The query side turns do_t into dS~_i, dz~_i, dphi(q_t) and rows of dm. The mixing matrix carries
/// dS~ and dz~ back to the key blocks. The key side turns dS_b and dz_b into dphi(k_t) and dv_t.
/// Both sides end in the adjoints of the feature maps. Formulas: read_out.hpp, denominator.hpp,
/// mixing.hpp, summary.hpp, feature_map.hpp. Queries with do_t = 0 are skipped: they add exactly 0.

#include <algorithm>
#include <type_traits>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/mixing_gradient.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/stage/summary.hpp"
#include "mhla/tokens/gather.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// An Operator whose feature maps have adjoints, and whose normaliser has slopes.
template <class Op, class T>
concept DifferentiableOperatorOn =
    OperatorOn<Op, T> && DifferentiableFeatureMap<detail::query_map_t<Op>, accumulator_t<T>> &&
    DifferentiableFeatureMap<detail::key_map_t<Op>, accumulator_t<T>> &&
    DifferentiableNormalizer<detail::normalizer_t<Op>>;

namespace detail {

template <class A>
struct GradientScratch {
  A* raw;                     ///< rows before the feature map, and their gradients
  Rows<A> queries, dqueries;  ///< [strip, D]
  Rows<A> normalizer_queries, normalizer_dqueries;  ///< [strip, Dz], if they are separate
  Rows<A> dn;                                       ///< [strip, E]
  A* sums;                                          ///< [strip] r_t
  A* dsums;                                         ///< [strip] dr_t
  A* products;              ///< [strip] phi(q_t) . dphi(q_t) of the numerator
  A* factors;               ///< [strip] scale / den_t
  A* slopes;                ///< [strip] factors times f'
  Rows<A> keys, dkeys;      ///< [strip, D or Dz]
  Rows<A> values, dvalues;  ///< [strip, E]
  A* transposed;            ///< S~_i^T or dS_b^T [E,D]
  Rows<A> places;           ///< [group, W] of CrossQuery
  Coefficients<A> coefficients;
  Mixtures<A> mixtures;
  Rows<A> key_sums;  ///< [group, Dz]
  MixingGradient<A> dmixing;

  /// \param raw_size  of the maps
  /// \param group   blocks that are mixed together     \param blocks  most blocks of either kind
  /// \param w       tokens of a block of CrossQuery, 0 of the others
  GradientScratch(const char* function, Arena& arena, Index raw_size, const HeadSizes& n,
                  Index group, Index blocks, Index w)
      : raw(arena.take<A>(function, {2, raw_size})),
        queries(function, arena, kStripTokens, n.features),
        dqueries(function, arena, kStripTokens, n.features),
        normalizer_queries(function, arena, kStripTokens, n.normalizer_features),
        normalizer_dqueries(function, arena, kStripTokens, n.normalizer_features),
        dn(function, arena, kStripTokens, n.values),
        sums(arena.take<A>(function, kStripTokens)),
        dsums(arena.take<A>(function, kStripTokens)),
        products(arena.take<A>(function, kStripTokens)),
        factors(arena.take<A>(function, kStripTokens)),
        slopes(arena.take<A>(function, kStripTokens)),
        keys(function, arena, kStripTokens, n.widest()),
        dkeys(function, arena, kStripTokens, n.widest()),
        values(function, arena, kStripTokens, n.values),
        dvalues(function, arena, kStripTokens, n.values),
        transposed(arena.take<A>(function, {n.values, round_up(n.features, kRowAlignment)})),
        places(function, arena, group, w),
        coefficients(function, arena, group, blocks),
        mixtures(function, arena, group, round_up(n.features, kRowAlignment), n.values),
        key_sums(function, arena, group, n.sum_features()),
        dmixing(function, arena, group, blocks) {}

  KeyScratch<A> key_scratch() const { return {raw, keys, values}; }
};

/// One head: the tensors to differentiate, and their gradients.
template <Scalar T, class Op>
class HeadGradient {
  using A = accumulator_t<T>;

 public:
  using Worker = GradientScratch<A>;

  HeadGradient(const Inputs<T>& in, const Op& op)
      : in_(in), op_(op), sizes_(head_sizes(in, op)), scale_(static_cast<A>(op.scale)) {}

  /// Sets the tensors; not needed to count bytes.
  void set(MatrixView<const T> dout, const Gradients<T>& gradients) {
    dout_ = dout;
    gradients_ = gradients;
  }

  const HeadSizes& sizes() const { return sizes_; }
  /// True if the denominator has queries and keys of its own.
  bool separate_normalizer() const { return sizes_.separate_normalizer(); }
  bool sums() const { return sizes_.sums != WeightSums::kNone; }
  Index raw() const { return std::max(query_raw_size(in_, op_), key_raw_size(in_, op_)); }
  /// phi(q) that the denominators read.
  Rows<A> denominator_queries(const Worker& w) const {
    return separate_normalizer() ? w.normalizer_queries : w.queries;
  }
  Rows<A> denominator_dqueries(const Worker& w) const {
    return separate_normalizer() ? w.normalizer_dqueries : w.dqueries;
  }

  // --- query side ---

  /// Selects the queries of a strip whose do_t, or ds of their slot unless null, is not 0.
  void select_queries(const Strip& from, const A* dslots, Strip& to) const {
    const auto counts = [&](Index t, Index place) {
      return (dslots && dslots[place] != 0) || !is_zero(dout_.row(t), dout_.cols, dout_.col_stride);
    };
    select_tokens(from, counts, to);
  }
  /// phi(Q) of a strip.
  void gather_queries(const Index* tokens, Index count, const Worker& w) const {
    gather_features(in_.q, tokens, count, op_.query_map, w.raw, w.queries);
  }
  /// phi of the denominator's own queries of a strip, if it has some.
  void gather_normalizer_queries(const Index* tokens, Index count, const Worker& w) const {
    if (!separate_normalizer()) return;
    gather_features(in_.normalizer_q, tokens, count, op_.query_map, w.raw, w.normalizer_queries);
  }

  /// r_t = phi(q_t) . z~_i.
  void sum_weights(Index count, const A* mixed_key_sum, const Worker& w) const {
    detail::sum_weights(denominator_queries(w), count, sizes_.sum_features(), mixed_key_sum,
                        w.sums);
  }

  /// den_t from r_t, and dn_t from do_t.
  void divide(const Index* tokens, Index count, const Worker& w) const {
    gradient_factors(op_.normalizer, w.sums, count, scale_, w.factors, w.slopes);
    gather_scaled(dout_, tokens, count, w.factors, w.dn);
  }

  /// The mixture's part of dphi(q_t) and of phi(q_t) . dphi(q_t).
  void read_queries(Index count, Rows<A> transposed, const Worker& w) const {
    read_out_adjoint_queries(w.dn, count, sizes_.features, sizes_.values, transposed, w.dqueries);
    if (!sums()) return;
    for (Index s = 0; s < count; ++s) {
      w.products[s] = dot(w.queries.row(s), w.dqueries.row(s), sizes_.features);
    }
  }

  /// dr_t, from complete products.
  void differentiate_sums(Index count, const Worker& w) const {
    if (sums()) read_out_adjoint_sums(w.products, w.slopes, count, w.dsums);
  }

  /// Adds dr_t's part to the denominator's dphi(q_t) and to dz, given the z that r_t multiplies.
  void differentiate_key_sum(Index count, const A* factors, const A* z, const Worker& w,
                             A* dz) const {
    sum_weights_adjoint(separate_normalizer() ? Start::kZero : Start::kTarget, factors,
                        denominator_queries(w), count, sizes_.sum_features(), z,
                        denominator_dqueries(w), dz);
  }

  /// dS~_i (+)= phi(Q)^T dN. Prefetches `next`.
  void accumulate_mixture(Start start, Index count, Rows<A> gradient, Prefetch& next,
                          const Worker& w) const {
    accumulate_summary(start, w.queries, w.dn, count, sizes_.features, sizes_.values, gradient,
                       &next);
    next.finish();
  }
  /// Prefetch of the query side's next strip.
  Prefetch next_queries(const Strip& ahead) const {
    const Index tiles = tiles_of<A>(sizes_.features, sizes_.values);
    return {tiles, ahead.tokens, ahead.count, in_.q, dout_, gradients_.q};
  }

  /// The adjoint of phi for the numerator's queries of a strip.
  void finish_queries(const Index* tokens, Index count, A* dweights, const Worker& w) const {
    add_features_adjoint(in_.q, tokens, count, op_.query_map, w.queries, w.dqueries, w.raw,
                         gradients_.q, dweights);
  }
  /// The same for the denominator's own.
  void finish_normalizer_queries(const Index* tokens, Index count, A* dweights,
                                 const Worker& w) const {
    if (!separate_normalizer()) return;
    add_features_adjoint(in_.normalizer_q, tokens, count, op_.query_map, w.normalizer_queries,
                         w.normalizer_dqueries, w.raw, gradients_.normalizer_q, dweights);
  }

  // --- key side ---

  /// Gradients that the keys of a block have already; absent ones count as 0.
  struct Gathered {
    Rows<A> dkeys{}, dvalues{}, normalizer_dkeys{};
  };

  /// dk, dv and the weights of the keys' map for a block.
  /// \param gradient  dS_b [D,E], or null for zeros, with `gathered`
  /// \param key_sum_gradient  dz_b, or null
  /// \param gathered  rows of the block's kept keys; overwritten
  template <Partition P>
  void differentiate_keys(const P& blocks, Index b, const A* gradient, const A* key_sum_gradient,
                          A* dweights, const Worker& w, Gathered gathered = {}) const {
    const Index d = sizes_.features, e = sizes_.values;
    const auto none = [](const A* x, Index n) { return x == nullptr || is_zero(x, n); };
    if (none(gradient, d * e) && none(key_sum_gradient, sizes_.sum_features())) {
      if (gathered.dkeys.data == nullptr) return;
      gradient = key_sum_gradient = nullptr;
    }
    Rows<A> transposed;
    if (gradient != nullptr) transposed = transpose_to(gradient, d, e, w.transposed);
    StripCursor strip(blocks, b, in_.key_mask);
    while (strip.next() > 0) {
      const Index tiles = tiles_of<A>(strip.count(), e) + tiles_of<A>(strip.count(), d);
      Prefetch next(tiles, strip.ahead().tokens, strip.ahead().count, in_.k, in_.v, gradients_.k,
                    gradients_.v);
      const Index count = strip.count();
      const Index* const tokens = strip.tokens();
      gather_features(in_.k, tokens, count, op_.key_map, w.raw, w.keys);
      add_to_values(tokens, count, {gradient, sizes_.values}, next, w, gathered.dvalues);
      add_to_keys(tokens, count, transposed, separate_normalizer() ? nullptr : key_sum_gradient,
                  next, dweights, w, gathered.dkeys);
      if (separate_normalizer()) {
        add_to_normalizer_keys(tokens, count, key_sum_gradient, dweights, w,
                               gathered.normalizer_dkeys);
      }
      gathered = {below(gathered.dkeys, count), below(gathered.dvalues, count),
                  below(gathered.normalizer_dkeys, count)};
      next.finish();
    }
  }

 private:
  static Rows<A> below(Rows<A> rows, Index count) {
    return rows.data == nullptr ? rows : rows.below(count);
  }

  /// dV += phi(K) dS_b for the rows of keys in scratch.
  void add_to_values(const Index* tokens, Index count, Rows<const A> gradient, Prefetch& next,
                     const Worker& w, Rows<A> gathered) const {
    const MatrixView<T>& dv = gradients_.v;
    if (dv.absent()) return;
    const Index d = sizes_.features, e = sizes_.values;
    const bool fresh = gathered.data == nullptr;
    const Rows<A> rows = fresh ? w.dvalues : gathered;
    if (gradient.data != nullptr) {
      summary_adjoint_values<A>(fresh ? Start::kZero : Start::kTarget, w.keys, count, d, e,
                                gradient, rows, &next);
    }
    add_to_tokens(rows, tokens, count, dv);
  }

  /// dphi(K) += V dS_b^T + dz_b for the same rows, and through phi to dk.
  void add_to_keys(const Index* tokens, Index count, Rows<A> transposed, const A* key_sum_gradient,
                   Prefetch& next, A* dweights, const Worker& w, Rows<A> gathered) const {
    if (gradients_.k.absent() && dweights == nullptr) return;
    const bool fresh = gathered.data == nullptr;
    const Rows<A> rows = fresh ? w.dkeys : gathered;
    if (transposed.data != nullptr) {
      gather(in_.v, tokens, count, w.values);
      summary_adjoint_keys<A>(fresh ? Start::kZero : Start::kTarget, w.values, count,
                              sizes_.features, sizes_.values, transposed, key_sum_gradient, rows,
                              &next);
    }
    add_features_adjoint(in_.k, tokens, count, op_.key_map, w.keys, rows, w.raw, gradients_.k,
                         dweights);
  }

  void add_to_normalizer_keys(const Index* tokens, Index count, const A* key_sum_gradient,
                              A* dweights, const Worker& w, Rows<A> gathered) const {
    const Index dz = sizes_.normalizer_features;
    const bool fresh = gathered.data == nullptr;
    const Rows<A> rows = fresh ? w.dkeys : gathered;
    for (Index s = 0; s < count; ++s) {
      if (fresh) std::fill_n(rows.row(s), dz, A(0));
      if (key_sum_gradient != nullptr) add_to(key_sum_gradient, rows.row(s), dz);
    }
    gather_features(in_.normalizer_k, tokens, count, op_.key_map, w.raw, w.keys);
    add_features_adjoint(in_.normalizer_k, tokens, count, op_.key_map, w.keys, rows, w.raw,
                         gradients_.normalizer_k, dweights);
  }

  const Inputs<T>& in_;
  const Op& op_;
  HeadSizes sizes_;
  A scale_;
  MatrixView<const T> dout_{};
  Gradients<T> gradients_{};
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
