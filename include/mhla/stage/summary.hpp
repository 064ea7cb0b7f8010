#pragma once

/// \file
/// Stage 3 of 5: one key-value summary per block of tokens.
///
///     S_b = sum_{t in b} phi(k_t) v_t^T     [D,E]
///     z_b = sum_{t in b} phi(k_t)           [D]
///
/// Adjoint, from the gradients dS_b, dz_b of the summaries, for t in b:
///
///     dphi(k_t) = dS_b v_t + dz_b     [D]
///     dv_t      = phi(k_t)^T dS_b     [E]
///
/// Cost: 2*N*D*E flops, N*(D+E) reads, M*D*(E+1) writes; the adjoint twice the flops.
/// Source: arXiv:2601.07832, section 4.1, eq. (3).

#include <algorithm>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/kernel/transpose.hpp"
#include "mhla/policy/partition.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// All S_b of one head, slab by slab. A slab has kTile.slab features and is a matrix with one row
/// per block: [D/slab, M, slab*E]. Mixing is D/slab products with long rows, and a tile of S_b is
/// contiguous. Both touch few pages.
template <class A>
struct Summaries {
  Index blocks;        ///< M
  Index features;      ///< D, after the feature map
  Index values;        ///< E
  Index block_stride;  ///< from one row of a slab to the next
  A* kv;

  Summaries(const char* function, Arena& arena, Index m, Index d, Index e)
      : blocks(m),
        features(d),
        values(e),
        block_stride(unaliased_stride<A>(checked_product(function, "workspace", {kTile.slab, e}))),
        kv(arena.take<A>(function, {slabs(), m, block_stride})) {}

  Index slabs() const { return ceil_div(features, kTile.slab); }
  /// True if summaries come from L3 or memory when they are read again.
  bool beyond_l2() const { return slabs() * blocks * block_stride * Index{sizeof(A)} > kL2Bytes; }
  /// Returns S_b: row s is slab s, with the rows of the slab one after another.
  Rows<A> block(Index b) const { return {kv + b * block_stride, blocks * block_stride}; }
  /// Slab s of all blocks [M, slab_columns(s)].
  Rows<A> slab(Index s) const { return {kv + s * blocks * block_stride, block_stride}; }
  Index slab_columns(Index s) const {
    return std::min(kTile.slab, features - s * kTile.slab) * values;
  }
};

/// Calls f(slab, first number in the slab, begin, end) for the part of numbers [begin, end) of D*E
/// in each slab.
template <class F>
void for_each_slab(Index values, ColumnSpan numbers, F&& f) {
  const Index whole = kTile.slab * values;
  for (Index next, begin = numbers.begin; begin < numbers.end; begin = next) {
    const Index slab = begin / whole;
    next = std::min(numbers.end, (slab + 1) * whole);
    f(slab, begin - slab * whole, begin, next);
  }
}

/// Memory for the S_b of a block by slabs (Summaries::block), and memory of the next block, to
/// prefetch, or null.
template <class A>
struct SummaryPlace {
  Rows<A> rows, next;

  /// Adds the memory of the next S_b [D,E] to `lines`.
  void prefetch_next(Index d, Index e, Prefetch& lines) const {
    for (Index row = 0; row < d && next.data != nullptr; row += kTile.slab) {
      lines.add(next.row(row / kTile.slab), std::min(kTile.slab, d - row) * e);
    }
  }
};

/// Scratch of one worker that reads keys and values.
template <class A>
struct KeyScratch {
  A* raw = nullptr;  ///< keys before the feature map
  Rows<A> keys;      ///< [strip, D]
  Rows<A> values;    ///< [strip, E]

  KeyScratch() = default;
  KeyScratch(A* raw_, Rows<A> keys_, Rows<A> values_) : raw(raw_), keys(keys_), values(values_) {}
  KeyScratch(const char* function, Arena& arena, Index raw_size, Index d, Index e)
      : raw(arena.take<A>(function, raw_size)),
        keys(function, arena, kStripTokens, d),
        values(function, arena, kStripTokens, e) {}
};

/// Adds rows [0, count) of strips to a slab of a summary, S [D,E] (+)= keys^T values. Prefetches
/// `next`.
/// \param summary  S by slabs (Summaries::block)
template <class A>
void accumulate_slab(Index slab, Start start, Rows<A> keys,
                     std::type_identity_t<Rows<const A>> values, Index count, Index d, Index e,
                     Rows<A> summary, Prefetch* next = nullptr) {
  const Index row = slab * kTile.slab, rows = std::min(kTile.slab, d - row);
  multiply<A>({.out = {summary.row(slab), e},
               .a = keys.right_of(row).matrix(count, rows).transposed(),
               .b = values,
               .cols = e,
               .start = start,
               .next = next});
}
/// Calls accumulate_slab for all slabs.
template <class A>
MHLA_NOINLINE void accumulate_summary(Start start, Rows<A> keys,
                                      std::type_identity_t<Rows<const A>> values, Index count,
                                      Index d, Index e, Rows<A> summary, Prefetch* next = nullptr) {
  for (Index slab = 0; slab * kTile.slab < d; ++slab) {
    accumulate_slab(slab, start, keys, values, count, d, e, summary, next);
  }
}

/// Adds rows [0, count) of a dense strip to a key sum.                         // [D]
template <class A>
MHLA_NOINLINE void accumulate_key_sum(Rows<A> keys, Index count, Index d, A* key_sum) {
  add_rows_to(keys.data, keys.stride, count, key_sum, d);
}

/// Writes S_b of block b, and z_b of the same keys unless `key_sum` is null.
/// \param k  [N,width] keys before the feature map     \param v  [N,E] values
template <Scalar T, class A, Partition P, class Map>
void summarize(MatrixView<const T> k, MatrixView<const T> v, const P& blocks, Index b, Mask mask,
               const Map& map, const KeyScratch<A>& scratch, const SummaryPlace<A>& summary,
               A* key_sum) {
  const Index d = map.features(k.cols);
  Start start = Start::kZero;
  if (key_sum != nullptr) std::fill_n(key_sum, d, A(0));
  StripCursor strip(blocks, b, mask);
  strip.next();
  do {  // at least once: a block without tokens gets zeros
    Prefetch next(tiles_of<A>(d, v.cols), strip.ahead().tokens, strip.ahead().count, k, v);
    if (!strip.more()) summary.prefetch_next(d, v.cols, next);
    gather_features(k, strip.tokens(), strip.count(), map, scratch.raw, scratch.keys);
    const Rows<const A> values = gathered(v, strip.tokens(), strip.count(), scratch.values);
    accumulate_summary(start, scratch.keys, values, strip.count(), d, v.cols, summary.rows, &next);
    next.finish();
    if (key_sum != nullptr) accumulate_key_sum(scratch.keys, strip.count(), d, key_sum);
    start = Start::kTarget;
  } while (strip.next() > 0);
}

/// Writes z_b of block b alone, for separate keys of the denominator.
template <Scalar T, class A, Partition P, class Map>
void sum_keys(MatrixView<const T> k, const P& blocks, Index b, Mask mask, const Map& map,
              const KeyScratch<A>& scratch, A* key_sum) {
  const Index d = map.features(k.cols);
  std::fill_n(key_sum, d, A(0));
  StripCursor strip(blocks, b, mask);
  while (strip.next() > 0) {
    gather_features(k, strip.tokens(), strip.count(), map, scratch.raw, scratch.keys);
    accumulate_key_sum(scratch.keys, strip.count(), d, key_sum);
  }
}

/// Writes y = x^T of a matrix [rows,cols] with row stride `cols`, and returns its rows. x must be
/// readable, and y writable, up to round_up(rows, kRowAlignment) rows.
template <class A>
Rows<A> transpose_to(const A* x, Index rows, Index cols, A* y) {
  const Index stride = round_up(rows, kRowAlignment);
  transpose_scaled(A(1), x, cols, rows, cols, y, stride);
  return {y, stride};
}

/// dphi(k) (+)= dS_b v for rows of values, plus dz_b unless null.                   // [count,D]
/// \param transposed  dS_b^T [E,D]
template <class A>
void summary_adjoint_keys(Start start, Rows<A> values, Index count, Index d, Index e,
                          Rows<const A> transposed, const A* key_sum_gradient, Rows<A> dkeys,
                          Prefetch* next = nullptr) {
  multiply<A>({.out = dkeys,
               .a = values.matrix(count, e),
               .b = transposed,
               .cols = d,
               .start = start,
               .next = next});
  if (key_sum_gradient == nullptr) return;
  for (Index s = 0; s < count; ++s) add_to(key_sum_gradient, dkeys.row(s), d);
}

/// dv (+)= phi(k)^T dS_b for rows of keys.                                           // [count,E]
/// \param gradient  dS_b [D,E]
template <class A>
void summary_adjoint_values(Start start, Rows<A> keys, Index count, Index d, Index e,
                            Rows<const A> gradient, Rows<A> dvalues, Prefetch* next = nullptr) {
  multiply<A>({.out = dvalues,
               .a = keys.matrix(count, d),
               .b = gradient,
               .cols = e,
               .start = start,
               .next = next});
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
