#pragma once

/// \file
/// One head's gradient, strip by strip: what the bidirectional and the causal form share.
///
/// The query side turns do_t into dS~_i, dz~_i, dphi(q_t) and rows of dm; the mixing matrix carries
/// dS~ and dz~ back to the key blocks; the key side turns dS_b and dz_b into dphi(k_t) and dv_t.
/// The adjoints of the feature maps end both sides. Formulas: read_out.hpp, normalizer.hpp,
/// mixing.hpp, summary.hpp, feature_map.hpp.

#include <algorithm>
#include <type_traits>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/stage/gather.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/stage/summary.hpp"
#include "mhla/stage/token_rows.hpp"

namespace mhla::inline MHLA_TARGET {

/// An Operator whose gradient can be computed: its feature maps have adjoints.
template <class Op, class T>
concept DifferentiableOperatorOn =
    OperatorOn<Op, T> && DifferentiableFeatureMap<detail::query_map_t<Op>, accumulator_t<T>> &&
    DifferentiableFeatureMap<detail::key_map_t<Op>, accumulator_t<T>>;

namespace detail {

/// Where the gradients of the shared parameters go: plain memory, null where they are not wanted.
template <class A>
struct ParameterSums {
  A* mixing = nullptr;     ///< as MixingMatrix::storage
  A* query_map = nullptr;  ///< [weights]
  A* key_map = nullptr;    ///< [weights]
};

template <class A>
ParameterSums<A> sums_of(const ParameterGradients<A>& parameters) {
  return {parameters.mixing == nullptr ? nullptr : parameters.mixing->storage().data(),
          parameters.query_map.empty() ? nullptr : parameters.query_map.data(),
          parameters.key_map.empty() ? nullptr : parameters.key_map.data()};
}

/// Scratch of one worker.
template <class A>
struct GradientScratch {
  A* raw;                             ///< two widened rows before the feature map
  Rows<A> queries, dqueries;          ///< [strip, D]
  Rows<A> own_queries, own_dqueries;  ///< [strip, Dz] of the denominator, where it has its own
  Rows<A> dn;                         ///< [strip, E]
  A* sums;                            ///< [strip] r_t
  A* dsums;                           ///< [strip] dr_t
  A* products;                        ///< [strip] phi(q_t) . dphi(q_t) of the numerator
  A* factors;                         ///< [strip] scale / den_t
  Rows<A> keys, dkeys;                ///< [strip, D or Dz]
  Rows<A> values, dvalues;            ///< [strip, E]
  A* transposed;                      ///< S~_i^T or dS_b^T [E,D]
  A* slots;                           ///< [group, W] of CrossQuery
  Mixtures<A> mixtures;
  MixingGradient<A> dmixing;

  /// \param width   of the widest token before the feature map
  /// \param group   blocks that are mixed together     \param blocks  most blocks of either kind
  /// \param w       tokens of a block of CrossQuery, 0 of the others
  GradientScratch(const char* function, Arena& arena, Index width, const HeadSizes& n, Index group,
                  Index blocks, Index w)
      : raw(arena.take<A>(function, {2, width})),
        queries(function, arena, kStripTokens, n.features),
        dqueries(function, arena, kStripTokens, n.features),
        own_queries(function, arena, kStripTokens, n.normalizer_features),
        own_dqueries(function, arena, kStripTokens, n.normalizer_features),
        dn(function, arena, kStripTokens, n.values),
        sums(arena.take<A>(function, kStripTokens)),
        dsums(arena.take<A>(function, kStripTokens)),
        products(arena.take<A>(function, kStripTokens)),
        factors(arena.take<A>(function, kStripTokens)),
        keys(function, arena, kStripTokens, std::max(n.features, n.normalizer_features)),
        dkeys(function, arena, kStripTokens, std::max(n.features, n.normalizer_features)),
        values(function, arena, kStripTokens, n.values),
        dvalues(function, arena, kStripTokens, n.values),
        transposed(arena.take<A>(function, {n.values, round_up(n.features, kRowAlignment)})),
        slots(arena.take<A>(function, {group, w})),
        mixtures(function, arena, group, blocks,
                 round_up(std::max(n.features, n.normalizer_features), kRowAlignment), n.values),
        dmixing(function, arena, group, blocks) {}
};

/// One head: what is differentiated, and where its gradients go.
template <Scalar T, class Op>
class HeadGradient {
  using A = accumulator_t<T>;
  using Z = normalizer_t<Op>;

 public:
  using Worker = GradientScratch<A>;

  HeadGradient(const Inputs<T>& in, const Op& op)
      : in_(in), op_(op), sizes_(head_sizes(in, op)), scale_(static_cast<A>(op.scale)) {}

  /// Sets what is computed from; not needed to count bytes.
  void set(MatrixView<const T> dout, const Gradients<T>& gradients) {
    dout_ = dout;
    gradients_ = &gradients;
  }

  const HeadSizes& sizes() const { return sizes_; }
  bool own() const { return sizes_.normalizer_features > 0; }  ///< queries of the denominator
  Index width() const {
    return std::max({in_.q.cols, in_.k.cols, in_.normalizer_q.cols, in_.normalizer_k.cols});
  }
  /// phi(q) that the denominators read.
  Rows<A> denominator_queries(const Worker& w) const { return own() ? w.own_queries : w.queries; }
  Rows<A> denominator_dqueries(const Worker& w) const {
    return own() ? w.own_dqueries : w.dqueries;
  }

  // --- query side ---

  /// phi(Q) of a strip.
  void gather_queries(const Index* tokens, Index count, const Worker& w) const {
    gather_features(in_.q, tokens, count, op_.query_map, w.raw, w.queries);
  }
  /// phi of the denominator's queries of a strip, where they are others.
  void gather_own_queries(const Index* tokens, Index count, const Worker& w) const {
    if (own()) {
      gather_features(in_.normalizer_q, tokens, count, op_.query_map, w.raw, w.own_queries);
    }
  }

  /// r_t = phi(q_t) . z~_i, for KeySum.
  void sum_weights(Index count, const A* mixed_key_sum, const Worker& w) const {
    key_sum_denominators(denominator_queries(w), count, key_sum_features(sizes_), mixed_key_sum,
                         A(0), w.sums);
  }

  /// den_t from r_t, and dn_t from do_t.
  void divide(const Index* tokens, Index count, const Worker& w) const {
    if constexpr (kUsesKeySums<Z>) {
      gradient_factors(w.sums, count, scale_, static_cast<A>(op_.normalizer.eps), w.factors);
    } else {
      std::fill_n(w.factors, count, scale_);
    }
    gather_scaled(dout_, tokens, count, w.factors, w.dn);
  }

  /// The part of dphi(q_t) and of phi(q_t) . dphi(q_t) that comes from the mixture.
  void read_queries(Index count, RightOperand<A> transposed, const Worker& w) const {
    read_out_adjoint_queries(w.dn, count, sizes_.features, sizes_.values, transposed, w.dqueries);
    if constexpr (kUsesKeySums<Z>) {
      for (Index s = 0; s < count; ++s) {
        w.products[s] = dot(w.queries.row(s), w.dqueries.row(s), sizes_.features);
      }
    }
  }

  /// dr_t; products are complete.
  void differentiate_sums(Index count, const Worker& w) const {
    if constexpr (kUsesKeySums<Z>) {
      read_out_adjoint_sums(w.products, w.factors, count, w.dsums);
    }
  }

  /// What dr_t adds to the denominator's dphi(q_t), given the sum z that r_t multiplies, and to dz.
  void differentiate_key_sum(Index count, const A* factors, const A* z, const Worker& w,
                             A* dz) const {
    key_sum_adjoint(own() ? Start::kZero : Start::kTarget, factors, denominator_queries(w), count,
                    key_sum_features(sizes_), z, denominator_dqueries(w), dz);
  }

  /// dS~_i (+)= phi(Q)^T dN. Asks for the rows of a lookahead meanwhile.
  void accumulate_mixture(Start start, Index count, SummaryBlock<A> gradient,
                          const Lookahead& lookahead, const Worker& w) const {
    accumulate_summary(start, w.queries, w.dn, count, sizes_.features, gradient, lookahead);
  }
  /// What the query side needs of the next strip.
  Lookahead query_lookahead(const Strip& ahead) const {
    return {ahead, in_.q, dout_, gradients_->q};
  }

  /// The adjoint of phi for the numerator's queries of a strip.
  void finish_queries(const Index* tokens, Index count, A* dweights, const Worker& w) const {
    add_features_adjoint(in_.q, tokens, count, op_.query_map, w.queries, w.dqueries, w.raw,
                         gradients_->q, dweights);
  }
  /// The same for the denominator's own.
  void finish_own_queries(const Index* tokens, Index count, A* dweights, const Worker& w) const {
    if (!own() || !kUsesKeySums<Z>) return;
    add_features_adjoint(in_.normalizer_q, tokens, count, op_.query_map, w.own_queries,
                         w.own_dqueries, w.raw, gradients_->normalizer_q, dweights);
  }

  // --- key side ---

  /// Rows that a form has gathered already for the keys of a strip; absent ones count as 0.
  struct Gathered {
    Rows<A> dkeys{}, dvalues{}, own_dkeys{};
  };

  /// dk, dv and the weights of the keys' map for a block.
  /// \param gradient  dS_b [D,E]      \param key_sum_gradient  dz_b, null where there is none
  /// \param gathered  rows of the block's kept keys, added to and used up
  template <Partition P>
  void differentiate_keys(const P& blocks, Index b, const A* gradient, const A* key_sum_gradient,
                          A* dweights, const Worker& w, Gathered gathered = {}) const {
    const RightOperand<A> transposed =
        transpose_to(gradient, sizes_.features, sizes_.values, w.transposed);
    StripCursor strip(blocks, b, in_.key_mask);
    while (strip.next() > 0) {
      const Lookahead lookahead(strip.ahead(), in_.k, in_.v, gradients_->k, gradients_->v);
      Index column = 0;
      for (Index begin = 0; begin < strip.count(); begin += kReadRows) {
        const Index count = std::min(kReadRows, strip.count() - begin);
        const Index* const tokens = strip.tokens() + begin;
        gather_features(in_.k, tokens, count, op_.key_map, w.raw, w.keys);
        add_to_values(tokens, count, RightAhead<A>({gradient, sizes_.values}, lookahead, column), w,
                      gathered.dvalues);
        column += panels<A>(sizes_.values);
        add_to_keys(tokens, count, RightAhead<A>(transposed, lookahead, column),
                    own() ? nullptr : key_sum_gradient, dweights, w, gathered.dkeys);
        column += panels<A>(sizes_.features);
        if (own() && key_sum_gradient != nullptr) {
          add_to_own_keys(tokens, count, key_sum_gradient, dweights, w, gathered.own_dkeys);
        }
        gathered = {below(gathered.dkeys, count), below(gathered.dvalues, count),
                    below(gathered.own_dkeys, count)};
      }
      lookahead.fetch(column);  // what the products of a short strip have left over
    }
  }

 private:
  static Rows<A> below(Rows<A> rows, Index count) {
    return rows.data == nullptr ? rows : rows.below(count);
  }

  /// dv += phi(K)^T dS_b for rows of keys, which are in scratch.
  void add_to_values(const Index* tokens, Index count, RightAhead<A> gradient, const Worker& w,
                     Rows<A> gathered) const {
    const MatrixView<T>& dv = gradients_->v;
    if (dv.absent()) return;
    const Index d = sizes_.features, e = sizes_.values;
    const bool fresh = gathered.data == nullptr;
    if constexpr (std::is_same_v<T, A>) {
      if (fresh && dv.col_stride == 1) {
        summary_adjoint_values(Start::kTarget, w.keys, count, d, e, gradient,
                               TokenRows<A>{dv.data, dv.row_stride, tokens});
        return;
      }
    }
    const Rows<A> rows = fresh ? w.dvalues : gathered;
    summary_adjoint_values(fresh ? Start::kZero : Start::kTarget, w.keys, count, d, e, gradient,
                           Target<A>{rows.data, rows.stride});
    add_to_tokens(rows, tokens, count, dv);
  }

  /// dphi(K) += dS_b V + dz_b for the same rows, and through phi to dk.
  void add_to_keys(const Index* tokens, Index count, RightAhead<A> transposed,
                   const A* key_sum_gradient, A* dweights, const Worker& w,
                   Rows<A> gathered) const {
    if (gradients_->k.absent() && dweights == nullptr) return;
    gather(in_.v, tokens, count, w.values);
    const bool fresh = gathered.data == nullptr;
    const Rows<A> rows = fresh ? w.dkeys : gathered;
    summary_adjoint_keys(fresh ? Start::kZero : Start::kTarget, w.values, count, sizes_.features,
                         sizes_.values, transposed, key_sum_gradient, rows);
    add_features_adjoint(in_.k, tokens, count, op_.key_map, w.keys, rows, w.raw, gradients_->k,
                         dweights);
  }

  void add_to_own_keys(const Index* tokens, Index count, const A* key_sum_gradient, A* dweights,
                       const Worker& w, Rows<A> gathered) const {
    const Index dz = sizes_.normalizer_features;
    const bool fresh = gathered.data == nullptr;
    const Rows<A> rows = fresh ? w.dkeys : gathered;
    for (Index s = 0; s < count; ++s) {
      if (fresh) std::fill_n(rows.row(s), dz, A(0));
      add_rows_to(key_sum_gradient, 0, 1, rows.row(s), dz);
    }
    gather_features(in_.normalizer_k, tokens, count, op_.key_map, w.raw, w.keys);
    add_features_adjoint(in_.normalizer_k, tokens, count, op_.key_map, w.keys, rows, w.raw,
                         gradients_->normalizer_k, dweights);
  }

  const Inputs<T>& in_;
  const Op& op_;
  HeadSizes sizes_;
  A scale_;
  MatrixView<const T> dout_{};
  const Gradients<T>* gradients_ = nullptr;
};

/// Gradients of a map's weights, gathered for each group of blocks apart, so that their sum does
/// not depend on who computes which group.
template <class A>
class WeightParts {
 public:
  WeightParts(const char* function, Arena& arena, Index groups, Index weights)
      : parts_(arena.take<A>(function, {groups, weights})), groups_(groups), weights_(weights) {}

  /// Where group g adds, null where nothing is wanted.
  A* part(Index g) const { return wanted_ ? parts_ + g * weights_ : nullptr; }
  void start(const A* sums) {
    wanted_ = sums != nullptr && weights_ > 0;
    if (wanted_) std::fill_n(parts_, groups_ * weights_, A(0));
  }
  /// Adds the parts, the first group first.
  void finish(A* sums) const {
    if (!wanted_) return;
    for (Index g = 1; g < groups_; ++g) add_rows_to(part(g), 0, 1, parts_, weights_);
    if (groups_ > 0) add_rows_to(parts_, 0, 1, sums, weights_);
  }

 private:
  A* parts_;
  Index groups_;
  Index weights_;
  bool wanted_ = false;
};

/// Blocks of a group in the backward forms: as in the forward, but independent of the number of
/// workers where weights are gathered by groups.
template <class A, class Op>
Index gradient_group(const Op& op, Index blocks, const HeadSizes& n, Index workers) {
  if (op.query_map.weights() > 0 || op.key_map.weights() > 0) return kGroupBlocks;
  return group_blocks<A>(blocks, n.features, n.values, workers);
}

inline Index groups_of(Index blocks, Index group) { return (blocks + group - 1) / group; }

// --- what callers may get wrong ---

/// Throws unless `gradient` is absent or shaped as `of`.
template <class T>
void expect_gradient(const char* function, const char* argument, const MatrixView<T>& gradient,
                     Index rows, Index cols) {
  if (!gradient.absent()) expect_shape(function, argument, gradient, rows, cols);
}

/// Throws unless the gradients of one head are absent or shaped as its inputs.
template <Scalar T>
void expect_gradients(const char* function, const Inputs<T>& in, const Gradients<T>& gradients) {
  const auto expect = [&](const char* argument, const auto& gradient, const auto& of) {
    expect_gradient(function, argument, gradient, of.rows, of.cols);
  };
  expect("gradients.q", gradients.q, in.q);
  expect("gradients.k", gradients.k, in.k);
  expect("gradients.v", gradients.v, in.v);
  expect("gradients.normalizer_q", gradients.normalizer_q, in.normalizer_q);
  expect("gradients.normalizer_k", gradients.normalizer_k, in.normalizer_k);
}

/// Throws unless the gradients of the parameters are absent or as large as the parameters.
template <class A, class Op>
void expect_parameters(const char* function, const MixingMatrix<A>& mixing, const Op& op,
                       const ParameterGradients<A>& parameters) {
  if (parameters.mixing != nullptr && !parameters.mixing->same_band(mixing)) {
    fail_shape(function, "parameters.mixing",
               "has shape " + shape_text({parameters.mixing->rows(), parameters.mixing->cols()}) +
                   " and rows of up to " + std::to_string(parameters.mixing->width()),
               "the shape and the band of mixing, " + shape_text({mixing.rows(), mixing.cols()}) +
                   " and rows of up to " + std::to_string(mixing.width()));
  }
  const auto expect = [&](const char* argument, std::span<A> weights, Index count) {
    if (!weights.empty() && static_cast<Index>(weights.size()) != count) {
      fail_shape(function, argument, "has " + std::to_string(weights.size()) + " elements",
                 std::to_string(count) + " (the weights of the map) or none");
    }
  };
  expect("parameters.query_map", parameters.query_map, op.query_map.weights());
  expect("parameters.key_map", parameters.key_map, op.key_map.weights());
}

}  // namespace detail
}  // namespace mhla::inline MHLA_TARGET
