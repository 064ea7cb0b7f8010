#pragma once

/// \file
/// Stage 5' of 5, causal only: the part of its own block that a query may see.
///
///     T     = m_ii tril(phi(Q_i) phi(K_i)^T)     [W,W]
///     O_i  += T V_i                              [W,E]
///     den_t += sum_j T_tj                        [W]
///
/// Query t sees the kept keys of its block up to its own slot. Later keys enter no sum, not even
/// multiplied by zero.
///
/// Adjoint, with P = phi(Q_i) phi(K_i)^T, the gradients dn_t of the numerators and dden_t of the
/// denominators (read_out.hpp), over the pairs t, j that see each other:
///
///     dP_tj       = m_ii (dn_t . v_j + dden_t)
///     dphi(q_t)  += sum_j dP_tj phi(k_j)         dphi(k_j) += sum_t dP_tj phi(q_t)
///     dv_j       += sum_t m_ii P_tj dn_t         dm_ii      = sum_tj P_tj (dn_t . v_j + dden_t)
///
/// Cost: about N*W*(D+E) flops, the adjoint 2.5 times as much.
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

/// Adds the visible part of a block to the outputs of a strip of its queries, and the sums of the
/// weights to `denominators` unless that is null.
/// \param places  [count] slots of the strip's queries in the block, ascending
/// \param block   keys of the block times m_ii with slots as places, at least the visible ones
/// \param scores  room for [strip, strip]
template <class A>
void add_intra_block(Rows<A> queries, const Index* places, Index count, const PackedKeys<A>& block,
                     Rows<A> scores, Rows<A> outputs, A* denominators, Prefetch* next = nullptr) {
  Index visible[kStripTokens];  // keys each query sees
  for (Index r = 0; r < count; ++r) visible[r] = block.visible(places[r]);
  const Index widest = count > 0 ? visible[count - 1] : 0;
  for (Index begin = 0, t = 0; begin < widest; begin += kStripTokens, ++t) {
    Index seen[kStripTokens]{};  // of them, those in tile t
    for (Index r = 0; r < count; ++r) seen[r] = block.visible_in_tile(visible[r], t);
    block.score(queries, seen, count, t, scores, next);
    block.add_values(scores, seen, count, t, outputs, next);
    if (denominators == nullptr) continue;
    for (Index r = 0; r < count; ++r) denominators[r] += sum(scores.row(r), seen[r]);
  }
}

/// The adjoint of one block, strip by strip of its queries. Call order: clear, then for every strip
/// append up to what it sees, score, multiply_values, finish, and the add_ functions.
template <class A>
class IntraBlockAdjoint {
 public:
  IntraBlockAdjoint() = default;
  /// \param w  tokens of the longest block     \param e  0 for a denominator's own queries and keys
  IntraBlockAdjoint(const char* function, Arena& arena, Index w, Index d, Index e)
      : features_(d),
        values_(e),
        keys_(function, arena, w, d, 0),
        transposed_values_(function, arena, w, e, d),
        scores_(function, arena, kStripTokens, round_up(w, kStripTokens)),
        products_(function, arena, kStripTokens, round_up(w, kStripTokens)),
        transposed_(function, arena, kStripTokens, kStripTokens),
        score_sums_(arena.take<A>(function, kStripTokens)),
        product_sums_(arena.take<A>(function, kStripTokens)) {}

  void clear() {
    keys_.clear();
    transposed_values_.clear();
  }
  Index keys() const { return keys_.count(); }  ///< appended so far

  /// Appends a strip of kept keys, phi(K) [n,D] and V [n,E]; rows up to kStripTokens are
  /// overwritten.
  void append(Rows<A> keys, Rows<A> values, const Index* places, Index n) {
    transposed_values_.append(values, keys, places, n, A(1));
    keys_.append(keys, Rows<A>(), places, n, A(1));
  }

  /// P for a strip of queries [count,D] in the given slots, and the sums of its rows.
  void score(Rows<A> queries, const Index* places, Index count) {
    count_ = count;
    for (Index r = 0; r < count; ++r) visible_[r] = keys_.visible(places[r]);
    multiply_tiles(keys_, queries, scores_);
    for (Index r = 0; r < count; ++r) score_sums_[r] = sum(scores_.row(r), visible_[r]);
  }
  const A* score_sums() const { return score_sums_; }  ///< sum_j P_tj   [count]

  /// dn_t . v_j, and the sums of P_tj dn_t . v_j.
  void multiply_values(Rows<A> dn) {
    multiply_tiles(transposed_values_, dn, products_);
    for (Index r = 0; r < count_; ++r) {
      product_sums_[r] = dot(scores_.row(r), products_.row(r), visible_[r]);
    }
  }
  const A* product_sums() const { return product_sums_; }  ///< sum_j P_tj dn_t . v_j   [count]

  /// dP. Returns the strip's part of dm_ii.
  /// \param dden  [count], null for zeros
  A finish(A weight, const A* dden) {
    A gradient = 0;
    for (Index r = 0; r < count_; ++r) {
      const A shift = dden == nullptr ? A(0) : dden[r];
      gradient += product_sums_[r] + shift * score_sums_[r];
      transform(products_.row(r), products_.row(r), visible_[r], [=](auto p) {
        using P = decltype(p);
        using namespace Eigen::internal;
        return pmul(pset1<P>(weight), padd(p, pset1<P>(shift)));
      });
    }
    return gradient;
  }

  /// dphi(Q) += dP phi(K).                                                        // [count,D]
  void add_queries(Rows<A> dqueries) const {
    for_each_tile([&](Index t, const Index* seen) {
      transposed_values_.add_values(products_.right_of(t * kStripTokens), seen, count_, t,
                                    dqueries);
    });
  }
  /// dphi(K) += dP^T phi(Q), for all keys so far.                                 // [keys,D]
  void add_keys(Rows<A> queries, Rows<A> dkeys) const {
    add_transposed(A(1), products_, queries, features_, dkeys);
  }
  /// dV += m_ii P^T dN, for all keys so far.                                      // [keys,E]
  void add_values(A weight, Rows<A> dn, Rows<A> dvalues) const {
    add_transposed(weight, scores_, dn, values_, dvalues);
  }

 private:
  /// f(tile, seen) for the tiles that the strip sees; query r sees seen[r] of its keys.
  template <class F>
  void for_each_tile(F&& f) const {
    const Index widest = count_ > 0 ? visible_[count_ - 1] : 0;
    for (Index begin = 0, t = 0; begin < widest; begin += kStripTokens, ++t) {
      Index seen[kStripTokens]{};
      for (Index r = 0; r < count_; ++r) seen[r] = keys_.visible_in_tile(visible_[r], t);
      f(t, static_cast<const Index*>(seen));
    }
  }

  /// results[r, j] = rows[r] . key j, for the pairs that see each other.
  void multiply_tiles(const PackedKeys<A>& tiles, Rows<A> rows, Rows<A> results) const {
    for_each_tile([&](Index t, const Index* seen) {
      tiles.score(rows, seen, count_, t, results.right_of(t * kStripTokens));
    });
  }

  /// sums[j] += factor * sum_t pairs[t, j] rows[t], over the queries t that see key j.
  void add_transposed(A factor, Rows<A> pairs, Rows<A> rows, Index cols, Rows<A> sums) const {
    for_each_tile([&](Index t, const Index* seen) {
      const Rows<A> tile = pairs.right_of(t * kStripTokens);
      transpose_scaled(factor, tile.data, tile.stride, count_, kStripTokens, transposed_.data,
                       transposed_.stride);
      ColumnSpan spans[kStripTokens];
      Index first = 0;  // query that sees key j
      for (Index j = 0; j < kStripTokens; ++j) {
        while (first < count_ && seen[first] <= j) ++first;
        spans[j] = {first, count_};
      }
      multiply<A>({.out = sums.below(t * kStripTokens),
                   .a = transposed_.matrix(seen[count_ - 1], kStripTokens),
                   .b = rows,
                   .cols = cols,
                   .start = Start::kTarget,
                   .spans = spans});
    });
  }

  Index features_ = 0;               // D
  Index values_ = 0;                 // E
  PackedKeys<A> keys_;               // phi(K)^T
  PackedKeys<A> transposed_values_;  // V^T, and phi(K) as rows
  Rows<A> scores_;                   // P [strip, W]
  Rows<A> products_;                 // dn . v, then dP [strip, W]
  Rows<A> transposed_;               // a tile of either [64,64]
  A* score_sums_ = nullptr;          // [strip]
  A* product_sums_ = nullptr;        // [strip]
  Index visible_[kStripTokens]{};    // keys each query of the strip sees
  Index count_ = 0;                  // queries of the strip
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
