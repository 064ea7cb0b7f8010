#pragma once

/// \file
/// Stage 3 of 5: one key-value summary per block of tokens.
///
///     S_b = sum_{t in b} phi(k_t) v_t^T     [D,E]
///     z_b = sum_{t in b} phi(k_t)           [D]
///
/// Blocks come from a Partition (stage 2); stage 4 mixes the summaries across blocks.
/// Cost: 2*N*D*E flops, N*(D+E) reads, M*D*(E+1) writes.
/// Source: arXiv:2601.07832, section 4.1, eq. (3).

#include "mhla/core/arch.hpp"
#include "mhla/core/tile.hpp"
#include "mhla/stage/strip.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// All S_b of one head: for each feature d an [M,E] matrix, so that mixing is D products with rows
/// that follow each other in memory.
template <class A>
struct Summaries {
  Index blocks;          ///< M
  Index features;        ///< D, after the feature map
  Index values;          ///< E
  Index feature_stride;  ///< from one [M,E] matrix to the next, an odd number of cache lines
  A* kv;                 ///< [D,M,E]

  Summaries(const char* function, Arena& arena, Index m, Index d, Index e)
      : blocks(m),
        features(d),
        values(e),
        feature_stride(unaliased_stride<A>(checked_product(function, "workspace", {m, e}))),
        kv(arena.take<A>(function, checked_product(function, "workspace", {d, feature_stride}))) {}

  /// S_b [D,E].
  Target<A> block(Index b) const { return {kv + b * values, feature_stride}; }
  /// Rows d of all S_b [M,E].
  RightOperand<A> feature(Index d) const { return {kv + d * feature_stride, values}; }
};

/// Scratch of one worker that reads keys and values.
template <class A>
struct KeyScratch {
  A* raw = nullptr;  ///< [width of k before the feature map]
  Rows<A> keys;      ///< [strip, D]
  Rows<A> values;    ///< [strip, E]

  KeyScratch() = default;
  KeyScratch(const char* function, Arena& arena, Index width, Index d, Index e)
      : raw(arena.take<A>(function, width)),
        keys(function, arena, kStripTokens, d),
        values(function, arena, kStripTokens, e) {}
};

/// Adds rows [0, count) of dense strips to a summary: S (+)= keys^T values.   // [D,E]
template <class A>
void accumulate_summary(Start start, Rows<A> keys, Rows<A> values, Index count, Index d, Index e,
                        Target<A> summary) {
  multiply<A>(start, summary, {keys.data, 1, keys.stride}, {values.data, values.stride}, d, e,
              count);
}

/// Adds rows [0, count) of a dense strip to a key sum.                         // [D]
template <class A>
void accumulate_key_sum(Rows<A> keys, Index count, Index d, A* key_sum) {
  add_rows_to(keys.data, keys.stride, count, key_sum, d);
}

/// Writes S_b of block b, and z_b of the same keys unless `key_sum` is null.
/// \param k  [N,width] keys before the feature map     \param v  [N,E] values
template <Scalar T, class A, Partition P, class Map>
void summarize(MatrixView<const T> k, MatrixView<const T> v, const P& blocks, Index b, Mask mask,
               const Map& map, KeyScratch<A>& scratch, Target<A> summary, A* key_sum) {
  const Index d = map.features(k.cols);
  Start start = Start::kZero;
  if (key_sum != nullptr) std::fill_n(key_sum, d, A(0));
  StripCursor strip(blocks, b, mask);
  do {
    strip.next();
    gather_features(k, strip.tokens(), strip.count(), map, scratch.raw, scratch.keys);
    gather(v, strip.tokens(), strip.count(), scratch.values);
    accumulate_summary(start, scratch.keys, scratch.values, strip.count(), d, v.cols, summary);
    if (key_sum != nullptr) accumulate_key_sum(scratch.keys, strip.count(), d, key_sum);
    start = Start::kTarget;
  } while (strip.count() == kStripTokens);
}

/// Writes z_b of block b alone, for normalisers with keys of their own.
template <Scalar T, class A, Partition P, class Map>
void sum_keys(MatrixView<const T> k, const P& blocks, Index b, Mask mask, const Map& map,
              KeyScratch<A>& scratch, A* key_sum) {
  const Index d = map.features(k.cols);
  std::fill_n(key_sum, d, A(0));
  StripCursor strip(blocks, b, mask);
  while (strip.next() > 0) {
    gather_features(k, strip.tokens(), strip.count(), map, scratch.raw, scratch.keys);
    accumulate_key_sum(scratch.keys, strip.count(), d, key_sum);
  }
}

}  // namespace mhla::inline MHLA_TARGET::detail
