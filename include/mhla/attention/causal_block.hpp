#pragma once

/// \file
/// One block of a causal form: its queries read the mixture of earlier blocks, and keys of their
/// block up to themselves (intra_block.hpp). For the causal form and streams.

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
  Rows<A> scores;                  // [strip, strip]
  PackedKeys<A> block;             // m_ii phi(K) and V of the block so far
  PackedKeys<A> normalizer_block;  // of the denominator's own keys

  /// \param query_raw, key_raw  raw_size of the tokens     \param w  tokens of the longest block
  CausalScratch(const char* function, Arena& arena, Index query_raw, Index key_raw,
                const HeadSizes& n, Index w)
      : keys(function, arena, key_raw, n.widest(), n.values),
        queries(function, arena, query_raw, n.features, n.normalizer_features, n.values),
        scores(function, arena, kStripTokens, kStripTokens),
        block(function, arena, w, n.features, n.values) {
    if (n.own()) normalizer_block = PackedKeys<A>(function, arena, w, n.normalizer_features, 0);
  }
  template <Scalar T, class Op>
  CausalScratch(const char* function, Arena& arena, const Inputs<T>& in, const Op& op,
                const HeadSizes& n, Index w)
      : CausalScratch(function, arena, query_raw_size(in, op), key_raw_size(in, op), n, w) {}
};

/// The mixture of the earlier blocks, and m_ii.
template <class A>
struct CausalRead {
  A weight;          ///< m_ii
  const A* mixture;  ///< S~_i [D,E]
  const A* key_sum;  ///< z~_i [Dz]
};

/// One block of a causal form. Keys are gathered as the queries reach them.
template <Scalar T, Partition P, class Op>
class CausalBlock {
  using A = accumulator_t<T>;

 public:
  CausalBlock(const Inputs<T>& in, const P& blocks, Index i, const Op& op, const HeadSizes& sizes,
              const CausalRead<A>& read, CausalScratch<A>& scratch)
      : in_(in),
        op_(op),
        n_(sizes),
        read_(read),
        scratch_(scratch),
        keys_(blocks, i, in.key_mask),
        queries_(blocks, i, in.query_mask),
        last_slot_(blocks.block_size(i) - 1) {
    scratch.block.clear();
    scratch.normalizer_block.clear();
  }

  /// Writes the outputs. Leaves all keys of the block in scratch.
  void read_out(MatrixView<T> out) {
    while (queries_.next() > 0) {
      const Index count = queries_.count();
      append_keys(queries_.places()[count - 1]);
      const Strip &queries = queries_.ahead(), &keys = keys_.ahead();
      Prefetch next(product_tiles(), queries.tokens, queries.count, in_.q, out);
      next.add(keys.tokens, keys.count, in_.k);
      next.add(keys.tokens, keys.count, in_.v);
      read_earlier_blocks(next);
      const bool sums = n_.sums != WeightSums::kNone;
      if (sums) sum_earlier_weights();
      A* const r = sums ? rows().denominators : nullptr;
      add_intra_block(rows().queries, queries_.places(), count, scratch_.block, scratch_.scores,
                      rows().outputs, n_.own() ? nullptr : r, &next);
      if (n_.own()) {
        add_intra_block(rows().normalizer_queries, queries_.places(), count,
                        scratch_.normalizer_block, scratch_.scores, rows().outputs, r);
      }
      if (sums) {
        op_.normalizer.denominators(static_cast<const A*>(r), count, r);
        divide_rows(rows().outputs, count, n_.values, r, rows().factors);
      }
      next.finish();
      scatter(rows().outputs, queries_.tokens(), count, out);
    }
    append_keys(last_slot_);
  }

 private:
  const QueryScratch<A>& rows() const { return scratch_.queries; }

  /// Gathers the keys of slots 0..slot, in whole strips.
  void append_keys(Index slot) {
    while (keys_.more() && keys_.ahead().places[0] <= slot) {
      keys_.next();
      append_strip(in_.k, in_.v, scratch_.block);
      if (!n_.own()) continue;
      append_strip(in_.normalizer_k, {nullptr, in_.k.rows, 0, 0}, scratch_.normalizer_block);
    }
  }
  void append_strip(MatrixView<const T> k, MatrixView<const T> v, PackedKeys<A>& packed) {
    gather_features(k, keys_.tokens(), keys_.count(), op_.key_map, scratch_.keys.raw,
                    scratch_.keys.keys);
    packed.append(scratch_.keys.keys, v, keys_.tokens(), keys_.places(), keys_.count(),
                  read_.weight);
  }

  /// Tiles of the products of a strip of queries, about.
  Index product_tiles() const {
    const Index read = tiles_of<A>(queries_.count(), n_.values);
    return read + scratch_.block.tiles() * (read + tiles_of<A>(queries_.count(), kStripTokens));
  }

  /// outputs = phi(Q) S~ for a strip of queries.
  void read_earlier_blocks(Prefetch& next) {
    gather_queries(in_.q, queries_.tokens(), queries_.count(), op_.query_map,
                   static_cast<A>(op_.scale), rows().raw, rows().queries);
    multiply<A>({.out = rows().outputs,
                 .a = rows().queries.matrix(queries_.count(), n_.features),
                 .b = {read_.mixture, n_.values},
                 .cols = n_.values,
                 .next = &next});
  }

  /// The earlier blocks' part of r_t, for a strip of queries.
  void sum_earlier_weights() {
    if (n_.own()) {
      gather_queries(in_.normalizer_q, queries_.tokens(), queries_.count(), op_.query_map,
                     static_cast<A>(op_.scale), rows().raw, rows().normalizer_queries);
    }
    sum_weights(rows().normalizer_queries, queries_.count(), n_.sum_features(), read_.key_sum,
                rows().denominators);
  }

  const Inputs<T>& in_;
  const Op& op_;
  const HeadSizes& n_;
  CausalRead<A> read_;
  CausalScratch<A>& scratch_;
  StripCursor<P> keys_, queries_;
  Index last_slot_;
};

/// Writes the outputs of block i. Leaves the block's keys and values in `scratch`.
template <Scalar T, class A, Partition P, class Op>
void read_causal_block(const Inputs<T>& in, const P& blocks, Index i, const Op& op,
                       const HeadSizes& sizes, const CausalRead<A>& read, CausalScratch<A>& scratch,
                       MatrixView<T> out) {
  clear_masked(blocks, i, in.query_mask, out);
  CausalBlock<T, P, Op>(in, blocks, i, op, sizes, read, scratch).read_out(out);
}

/// Adds the block in `scratch` to the running sums: R += m_ii phi(K)^T V [D,E], and z [Dz].
template <class A>
void extend_running(const CausalScratch<A>& scratch, const HeadSizes& sizes, A* running,
                    A* key_sum) {
  const PackedKeys<A>& block = scratch.block;
  const PackedKeys<A>& keys = sizes.own() ? scratch.normalizer_block : block;
  for (Index t = 0; t < block.tiles(); ++t) {
    multiply<A>({.out = {running, sizes.values},
                 .a = block.keys(t).matrix(sizes.features, block.size(t)),
                 .b = block.values(t),
                 .cols = sizes.values,
                 .start = Start::kTarget});
    for (Index j = 0; j < sizes.sum_features(); ++j) {
      key_sum[j] += sum(keys.keys(t).row(j), keys.size(t));
    }
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
