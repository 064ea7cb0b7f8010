#pragma once

/// \file
/// One block of a causal form, strip by strip of 64 tokens. Queries read R, which is the mixture of
/// the earlier blocks and the block's own earlier strips, and keys of their strip up to themselves
/// (intra_block.hpp); then the strip joins R:
///
///     o_t = (phi(q_t)^T R + m_ii sum_j (phi(q_t) . phi(k_j)) v_j^T) / den_t
///     R  += m_ii phi(K)^T V                                              [D,E]
///
/// So a token costs the same in blocks of any length. For the causal form and streams.

#include <algorithm>

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/stage/denominator.hpp"
#include "mhla/stage/intra_block.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/stage/summary.hpp"
#include "mhla/tokens/packed_keys.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Scratch of one worker that reads out a causal block.
template <class A>
struct CausalScratch {
  KeyScratch<A> keys;
  QueryScratch<A> queries;
  Rows<A> scores;                   // [strip, strip]
  PackedKeys<A> packed;             // m_ii phi(K) and V of a strip
  PackedKeys<A> normalizer_packed;  // of the denominator's own keys

  /// \param query_raw, key_raw  raw_size of the tokens
  CausalScratch(const char* function, Arena& arena, Index query_raw, Index key_raw,
                const HeadSizes& n)
      : keys(function, arena, key_raw, n.widest(), n.values),
        queries(function, arena, query_raw, n.features, n.normalizer_features, n.values),
        scores(function, arena, kStripTokens, kStripTokens),
        packed(function, arena, kStripTokens, n.features, n.values) {
    if (n.own()) {
      normalizer_packed = PackedKeys<A>(function, arena, kStripTokens, n.normalizer_features, 0);
    }
  }
  template <Scalar T, class Op>
  CausalScratch(const char* function, Arena& arena, const Inputs<T>& in, const Op& op,
                const HeadSizes& n)
      : CausalScratch(function, arena, query_raw_size(in, op), key_raw_size(in, op), n) {}
};

/// What queries read of earlier tokens, and m_ii. It begins with the mixture of the earlier blocks;
/// each strip of the block's own keys is added when its queries are read out.
template <class A>
struct CausalSums {
  A weight;    ///< m_ii
  A* matrix;   ///< R = S~_i + m_ii sum phi(k) v^T [D,E]
  A* key_sum;  ///< z~_i + m_ii sum phi(k) [Dz]
};

/// One block of a causal form, strip by strip.
template <Scalar T, Partition P, class Op>
class CausalBlock {
  using A = accumulator_t<T>;

 public:
  CausalBlock(const Inputs<T>& in, const P& blocks, Index i, const Op& op, const HeadSizes& sizes,
              const CausalSums<A>& sums, const CausalScratch<A>& scratch)
      : in_(in),
        op_(op),
        n_(sizes),
        sums_(sums),
        scratch_(scratch),
        blocks_(blocks),
        block_(i),
        keys_(blocks, i, in.key_mask) {}

  /// Writes the outputs.
  /// \param add_last  whether the sums take in the last strip, too
  void read_out(MatrixView<T> out, bool add_last) {
    const Index tokens = blocks_.block_size(block_);
    Strip queries;
    for (Index slot = 0; slot < tokens;) {
      keys_.next();
      pack();
      const Index end = keys_.more() ? keys_.ahead().places[0] : tokens;
      while (slot < end) {
        slot = read_slots(blocks_, block_, in_.query_mask, slot, end, queries);
        if (queries.count > 0) read_strip(queries, out);
      }
      if (add_last || keys_.more()) add_strip();
    }
  }

 private:
  const QueryScratch<A>& rows() const { return scratch_.queries; }

  /// Gathers a strip of keys.
  void pack() {
    pack(in_.k, in_.v, scratch_.packed);
    if (n_.own()) {
      pack(in_.normalizer_k, {nullptr, in_.k.rows, 0, 0}, scratch_.normalizer_packed);
    }
  }
  void pack(MatrixView<const T> k, MatrixView<const T> v, PackedKeys<A>& to) {
    gather_features(k, keys_.tokens(), keys_.count(), op_.key_map, scratch_.keys.raw,
                    scratch_.keys.keys);
    to.clear();
    to.append(scratch_.keys.keys, v, keys_.tokens(), keys_.places(), keys_.count(), sums_.weight);
  }

  /// Writes the outputs of queries that see keys up to the strip's. The next ones are prefetched as
  /// if a mask kept the same queries and keys.
  void read_strip(const Strip& queries, MatrixView<T> out) {
    const Index count = queries.count;
    const Strip& ahead = keys_.ahead();
    Prefetch next(2 * tiles_of<A>(count, n_.values) + tiles_of<A>(count, kStripTokens),
                  ahead.tokens, ahead.count, in_.q, out, in_.k, in_.v);
    read_earlier(queries, next);
    const bool sums = n_.sums != WeightSums::kNone;
    if (sums) sum_earlier_weights(queries);
    A* const r = sums ? rows().denominators : nullptr;
    add_intra_block(rows().queries, queries.places, count, scratch_.packed, scratch_.scores,
                    rows().outputs, n_.own() ? nullptr : r, &next);
    if (n_.own()) {
      add_intra_block(rows().normalizer_queries, queries.places, count, scratch_.normalizer_packed,
                      scratch_.scores, rows().outputs, r);
    }
    if (sums) {
      op_.normalizer.denominators(static_cast<const A*>(r), count, r);
      divide_rows(rows().outputs, count, n_.values, r, rows().factors);
    }
    next.finish();
    scatter(rows().outputs, queries.tokens, count, out);
  }

  /// outputs = phi(Q) R for a strip of queries.
  void read_earlier(const Strip& queries, Prefetch& next) {
    gather_queries(in_.q, queries.tokens, queries.count, op_.query_map, static_cast<A>(op_.scale),
                   rows().raw, rows().queries);
    multiply<A>({.out = rows().outputs,
                 .a = rows().queries.matrix(queries.count, n_.features),
                 .b = {sums_.matrix, n_.values},
                 .cols = n_.values,
                 .next = &next});
  }

  /// Earlier tokens' part of r_t, for a strip of queries.
  void sum_earlier_weights(const Strip& queries) {
    if (n_.own()) {
      gather_queries(in_.normalizer_q, queries.tokens, queries.count, op_.query_map,
                     static_cast<A>(op_.scale), rows().raw, rows().normalizer_queries);
    }
    sum_weights(rows().normalizer_queries, queries.count, n_.sum_features(), sums_.key_sum,
                rows().denominators);
  }

  /// Adds the strip's keys to what later queries read.
  void add_strip() {
    const PackedKeys<A>& strip = scratch_.packed;
    const PackedKeys<A>& keys = n_.own() ? scratch_.normalizer_packed : strip;
    multiply<A>({.out = {sums_.matrix, n_.values},
                 .a = strip.keys(0).matrix(n_.features, strip.count()),
                 .b = strip.values(0),
                 .cols = n_.values,
                 .start = Start::kTarget});
    for (Index j = 0; j < n_.sum_features(); ++j) {
      sums_.key_sum[j] += sum(keys.keys(0).row(j), keys.count());
    }
  }

  const Inputs<T>& in_;
  const Op& op_;
  const HeadSizes& n_;
  CausalSums<A> sums_;
  CausalScratch<A> scratch_;  // views of a worker's memory
  const P& blocks_;
  Index block_;
  StripCursor<P> keys_;
};

/// Writes the outputs of block i.
/// \param add_last  whether `sums` take in the last strip of the block, too
template <Scalar T, class A, Partition P, class Op>
void read_causal_block(const Inputs<T>& in, const P& blocks, Index i, const Op& op,
                       const HeadSizes& sizes, const CausalSums<A>& sums,
                       const CausalScratch<A>& scratch, MatrixView<T> out, bool add_last = false) {
  clear_masked(blocks, i, in.query_mask, out);
  CausalBlock<T, P, Op>(in, blocks, i, op, sizes, sums, scratch).read_out(out, add_last);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
