#pragma once

/// \file
/// One block of a causal form, in strips of 64 tokens. R mixes the earlier blocks and the earlier
/// strips of the block. One product reads R and, up to the query itself, the keys of the strip
/// (intra_block.hpp). Then the strip joins R:
///
///     O  = diag(1/den) [phi(Q) T] [R; V]     T = m_ii tril(phi(Q) phi(K)^T)     [strip,E]
///     R += m_ii phi(K)^T V                                                      [D,E]
///
/// A token costs the same in blocks of any length. The causal form and streams use this.

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
  PackedKeys<A> packed;             // m_ii phi(K) of a strip
  PackedKeys<A> normalizer_packed;  // of the denominator's own keys
  Rows<A> read;                     // R, and V of a strip below it [D + strip, E]

  /// \param query_raw, key_raw  raw_size of the tokens
  CausalScratch(const char* function, Arena& arena, Index query_raw, Index key_raw,
                const HeadSizes& n)
      : keys(function, arena, key_raw, n.widest(), n.values),
        queries(function, arena, query_raw, n.features + kStripTokens, n.normalizer_features,
                n.values),
        packed(function, arena, kStripTokens, n.features, 0),
        read(nullptr,
             alias(n.values * Index{sizeof(A)}) ? unaliased_stride<A>(n.values) : n.values) {
    read.data = arena.take<A>(function, {n.features + kStripTokens, read.stride});
    if (n.separate_normalizer()) {
      normalizer_packed = PackedKeys<A>(function, arena, kStripTokens, n.normalizer_features, 0);
    }
  }
  template <Scalar T, class Op>
  CausalScratch(const char* function, Arena& arena, const Inputs<T>& in, const Op& op,
                const HeadSizes& n)
      : CausalScratch(function, arena, query_raw_size(in, op), key_raw_size(in, op), n) {}
};

/// The sums over earlier tokens that queries read, and m_ii. They begin with the mixture of the
/// earlier blocks. After a strip is read out, its keys are added to R in scratch.
template <class A>
struct CausalSums {
  A weight;                 ///< m_ii
  A* matrix;                ///< R = S~_i + m_ii sum phi(k) v^T [D,E]
  A* key_sum;               ///< z~_i + m_ii sum phi(k) [Dz]
  const A* next = nullptr;  ///< the matrix of the block that is read next, to prefetch, or null
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
  /// \param add_last  whether the sums take in all strips; else their matrix stays as it is
  void read_out(MatrixView<T> out, bool add_last) {
    const Index tokens = blocks_.block_size(block_);
    copy_matrix(sums(), scratch_.read);
    bool several = false;  // strips
    Strip queries;
    for (Index slot = 0; slot < tokens;) {
      keys_.next();
      gather_keys();
      const Index end = keys_.more() ? keys_.ahead().places[0] : tokens;
      while (slot < end) {
        slot = read_slots(blocks_, block_, in_.query_mask, slot, end, queries);
        if (queries.count > 0) read_strip(queries, out);
      }
      if (keys_.more()) {
        add_strip(scratch_.read);
        several = true;
      } else if (add_last) {
        if (several) copy_matrix(scratch_.read, sums());
        add_strip(sums());
      }
    }
  }

 private:
  const QueryScratch<A>& rows() const { return scratch_.queries; }
  Rows<A> values() const { return scratch_.read.below(n_.features); }
  Rows<A> sums() const { return {sums_.matrix, n_.values}; }
  /// Copies R.
  void copy_matrix(Rows<A> from, Rows<A> to) const {
    if (from.stride == to.stride) {
      std::copy_n(from.data, n_.features * n_.values, to.data);
      return;
    }
    for (Index d = 0; d < n_.features; ++d) std::copy_n(from.row(d), n_.values, to.row(d));
  }

  /// Gathers a strip of keys and values.
  void gather_keys() {
    pack(in_.k, scratch_.packed);
    if (n_.separate_normalizer()) pack(in_.normalizer_k, scratch_.normalizer_packed);
    gather(in_.v, keys_.tokens(), keys_.count(), values());
  }
  void pack(MatrixView<const T> k, PackedKeys<A>& to) {
    gather_features(k, keys_.tokens(), keys_.count(), op_.key_map, scratch_.keys.raw,
                    scratch_.keys.keys);
    to.clear();
    to.append_keys(scratch_.keys.keys, keys_.places(), keys_.count(), sums_.weight);
  }

  /// Writes the outputs of queries that see keys up to the strip's. The next ones are prefetched as
  /// if a mask kept the same queries and keys.
  void read_strip(const Strip& queries, MatrixView<T> out) {
    const Index count = queries.count;
    const Strip& ahead = keys_.ahead();
    Prefetch next(tiles_of<A>(count, n_.values) + tiles_of<A>(count, kStripTokens), ahead.tokens,
                  ahead.count, in_.q, out, in_.k, in_.v);
    if (!keys_.more()) next.add(sums_.next, n_.features * n_.values);
    const bool divides = n_.sums != WeightSums::kNone;
    A* const r = rows().denominators;
    Index seen[kStripTokens]{};
    if (n_.separate_normalizer()) {
      score(in_.normalizer_q, queries, scratch_.normalizer_packed, rows().normalizer_queries, r,
            seen, nullptr);
    }
    score(in_.q, queries, scratch_.packed, rows().queries,
          divides && !n_.separate_normalizer() ? r : nullptr, seen, &next);
    if (divides) {
      op_.normalizer.denominators(static_cast<const A*>(r), count, r);
      reciprocals(r, count, rows().factors);
    }
    ColumnSpan spans[kStripTokens];
    for (Index s = 0; s < count; ++s) spans[s] = {0, n_.features + seen[s]};
    write_outputs(rows(), queries.tokens, count, out, [&](Rows<A> to) {
      multiply<A>({.out = to,
                   .a = rows().queries.matrix(count, spans[count - 1].end),
                   .b = scratch_.read,
                   .cols = n_.values,
                   .factors = divides ? rows().factors : nullptr,
                   .spans = spans,
                   .next = &next});
      if (divides) divide_without_reciprocal(to, count, n_.values, r, rows().factors);
    });
    next.finish();
  }

  /// Writes phi(q) of some queries into rows `to`, T after the numerator's features, and r_t unless
  /// null.
  void score(MatrixView<const T> q, const Strip& queries, const PackedKeys<A>& keys, Rows<A> to,
             A* r, Index* seen, Prefetch* next) {
    const Index count = queries.count;
    gather_queries(q, queries.tokens, count, op_.query_map, static_cast<A>(op_.scale), rows().raw,
                   to);
    if (r != nullptr) sum_weights(to, count, n_.sum_features(), sums_.key_sum, r);
    score_intra_block(to, queries.places, count, keys, rows().queries.right_of(n_.features), seen,
                      r, next);
  }

  /// Adds the strip's keys to R at `matrix` and z.
  void add_strip(Rows<A> matrix) {
    const PackedKeys<A>& keys =
        n_.separate_normalizer() ? scratch_.normalizer_packed : scratch_.packed;
    multiply<A>({.out = matrix,
                 .a = scratch_.packed.keys(0).matrix(n_.features, keys.count()),
                 .b = values(),
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
/// \param add_last  whether `sums` take in all strips of the block; else their matrix stays
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
