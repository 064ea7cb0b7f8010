#pragma once

/// \file
/// Stage 5' of 5, causal only: contribution of a strip of 64 keys to queries of the same block.
///
///     T      = m_ii tril(phi(Q) phi(K)^T)     [64,64]
///     den_t += sum_j T_tj                     [64]
///
/// and outputs T V, which attention/causal_block.hpp adds to the outputs from earlier keys. Query t
/// sees the kept keys of the strip up to its slot. Later keys enter no sum, not even multiplied
/// by zero.
///
/// Adjoint, with P = phi(Q) phi(K)^T, the gradients dn_t of the numerators and dden_t of the
/// denominators (read_out.hpp), over the pairs t, j that see each other:
///
///     dP_tj       = m_ii (dn_t . v_j + dden_t)
///     dphi(q_t)  += sum_j dP_tj phi(k_j)         dphi(k_j) += sum_t dP_tj phi(q_t)
///     dv_j       += sum_t m_ii P_tj dn_t         dm_ii      = sum_tj P_tj (dn_t . v_j + dden_t)
///
/// Cost: about 64*N*(D+E) flops, the adjoint 2.5 times as much.
/// Source: arXiv:2601.07832, section 4.2 and appendix C.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/transpose.hpp"
#include "mhla/tokens/packed_keys.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Writes T of a strip's queries and keys, and adds its row sums to `sums` unless that is null.
/// \param places  [count] slots of the queries, ascending
/// \param keys    the strip's keys times m_ii, with slots as places
/// \param scores  T [strip, strip]
/// \param seen    [strip] number of keys that each query sees
template <class A>
void score_intra_block(Rows<A> queries, const Index* places, Index count, const PackedKeys<A>& keys,
                       Rows<A> scores, Index* seen, A* sums, Prefetch* next = nullptr) {
  for (Index r = 0; r < count; ++r) seen[r] = keys.visible(places[r]);
  keys.score(queries, seen, count, 0, scores, next);
  if (sums == nullptr) return;
  for (Index r = 0; r < count; ++r) sums[r] += sum(scores.row(r), seen[r]);
}

/// The adjoint of a strip of keys and of queries that see some of these keys. Call order: set; then
/// score, multiply_values, finish and the add_ functions per group of up to 64 queries.
template <class A>
class IntraBlockAdjoint {
 public:
  IntraBlockAdjoint() = default;
  /// \param e  0 for separate queries and keys of a denominator
  IntraBlockAdjoint(const char* function, Arena& arena, Index d, Index e)
      : features_(d),
        values_(e),
        keys_(function, arena, kStripTokens, d, 0),
        transposed_values_(function, arena, kStripTokens, e, d),
        scores_(function, arena, kStripTokens, kStripTokens),
        products_(function, arena, kStripTokens, kStripTokens),
        transposed_(function, arena, kStripTokens, kStripTokens),
        score_sums_(arena.take<A>(function, kStripTokens)),
        product_sums_(arena.take<A>(function, kStripTokens)) {}

  /// Takes a strip of kept keys, phi(K) [n,D] and V [n,E]; rows from n on up to kStripTokens are
  /// overwritten.
  /// \param places  [n] slots, ascending
  void set(Rows<A> keys, Rows<A> values, const Index* places, Index n) {
    transposed_values_.clear();
    transposed_values_.append(values, keys, places, n, A(1));
    keys_.clear();
    keys_.append_keys(keys, places, n, A(1));
  }

  /// Computes P for some queries [count,D] in the given slots, and the sums of its rows.
  void score(Rows<A> queries, const Index* places, Index count) {
    count_ = count;
    for (Index r = 0; r < count; ++r) seen_[r] = keys_.visible(places[r]);
    keys_.score(queries, seen_, count, 0, scores_);
    for (Index r = 0; r < count; ++r) score_sums_[r] = sum(scores_.row(r), seen_[r]);
  }
  const A* score_sums() const { return score_sums_; }  ///< sum_j P_tj   [count]

  /// Computes dn_t . v_j, and per query the sum of P_tj dn_t . v_j.
  void multiply_values(Rows<A> dn) {
    transposed_values_.score(dn, seen_, count_, 0, products_);
    for (Index r = 0; r < count_; ++r) {
      product_sums_[r] = dot(scores_.row(r), products_.row(r), seen_[r]);
    }
  }
  const A* product_sums() const { return product_sums_; }  ///< sum_j P_tj dn_t . v_j   [count]

  /// Computes dP, and returns these queries' part of dm_ii.
  /// \param dden  [count], null for zeros
  A finish(A weight, const A* dden) {
    A gradient = 0;
    for (Index r = 0; r < count_; ++r) {
      const A shift = dden == nullptr ? A(0) : dden[r];
      gradient += product_sums_[r] + shift * score_sums_[r];
      transform(products_.row(r), products_.row(r), seen_[r], [=](auto p) {
        using P = decltype(p);
        using namespace Eigen::internal;
        return pmul(pset1<P>(weight), padd(p, pset1<P>(shift)));
      });
    }
    return gradient;
  }

  /// dphi(Q) += dP phi(K).                                                        // [count,D]
  void add_queries(Rows<A> dqueries) const {
    transposed_values_.add_values(products_, seen_, count_, 0, dqueries);
  }
  /// dphi(K) += dP^T phi(Q).                                                       // [n,D]
  void add_keys(Rows<A> queries, Rows<A> dkeys) const {
    add_transposed(A(1), products_, queries, features_, dkeys);
  }
  /// dV += m_ii P^T dN.                                                            // [n,E]
  void add_values(A weight, Rows<A> dn, Rows<A> dvalues) const {
    add_transposed(weight, scores_, dn, values_, dvalues);
  }

 private:
  /// sums[j] += factor * sum_t pairs[t, j] rows[t], over the queries t that see key j.
  void add_transposed(A factor, Rows<A> pairs, Rows<A> rows, Index cols, Rows<A> sums) const {
    if (count_ == 0) return;
    transpose_scaled(factor, pairs.data, pairs.stride, count_, kStripTokens, transposed_.data,
                     transposed_.stride);
    ColumnSpan spans[kStripTokens];
    Index first = 0;  // first query that sees key j
    for (Index j = 0; j < kStripTokens; ++j) {
      while (first < count_ && seen_[first] <= j) ++first;
      spans[j] = {first, count_};
    }
    multiply<A>({.out = sums,
                 .a = transposed_.matrix(seen_[count_ - 1], kStripTokens),
                 .b = rows,
                 .cols = cols,
                 .start = Start::kTarget,
                 .spans = spans});
  }

  Index features_ = 0;               // D
  Index values_ = 0;                 // E
  PackedKeys<A> keys_;               // phi(K)^T
  PackedKeys<A> transposed_values_;  // V^T, and phi(K) as rows
  Rows<A> scores_;                   // P [strip, strip]
  Rows<A> products_;                 // dn . v, then dP [strip, strip]
  Rows<A> transposed_;               // transposed scores or products
  A* score_sums_ = nullptr;          // [strip]
  A* product_sums_ = nullptr;        // [strip]
  Index seen_[kStripTokens]{};       // number of keys that each query sees
  Index count_ = 0;                  // queries
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
