#pragma once

/// \file
/// Kept keys and values in tiles of 64 tokens, for products of queries with single keys: inside a
/// causal block (intra_block.hpp) and in softmax attention.
///
///     T    = Q K_t^T          [rows,64]    scores of one tile
///     O   += T V_t            [rows,E]     of the keys that each query sees, no others
///
/// A key that a query does not see enters no sum, not even multiplied by zero.
/// Cost: 2*D flops per score, 2*E flops per score that is used; memory of D + E numbers per key.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/kernel/transpose.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The first `count` kept keys of a block or sequence, strip by strip.
template <class A>
class PackedKeys {
 public:
  PackedKeys() = default;
  /// \param capacity  largest number of keys appended
  PackedKeys(const char* function, Arena& arena, Index capacity, Index d, Index e)
      : features_(d), width_(e) {
    const Index tokens =
        checked_product(function, "workspace", {ceil_div(capacity, kStripTokens), kStripTokens});
    transposed_ = arena.take<A>(function, {tokens, d});
    values_ = Rows<A>(function, arena, tokens, e);
    places_ = arena.take<Index>(function, tokens);
  }

  void clear() { count_ = 0; }
  Index count() const { return count_; }
  Index tiles() const { return ceil_div(count_, kStripTokens); }
  /// Keys of tile t [D,64]; columns past the last key are 0.
  Rows<A> keys(Index t) const { return {transposed_ + t * features_ * kStripTokens, kStripTokens}; }
  Rows<A> values(Index t) const { return values_.below(t * kStripTokens); }  ///< [64,E]
  Index size(Index t) const { return std::min(kStripTokens, count_ - t * kStripTokens); }

  /// Number of keys in places 0..place.
  Index visible(Index place) const {
    return std::upper_bound(places_, places_ + count_, place) - places_;
  }
  /// Number of the first `visible` keys that lie in tile t.
  static Index visible_in_tile(Index visible, Index t) {
    return std::clamp<Index>(visible - t * kStripTokens, 0, kStripTokens);
  }

  /// Appends a strip: weight * keys, and the values of its tokens. All strips but the last are
  /// full.
  /// \param keys    dense [n,D]; rows up to kStripTokens are overwritten
  /// \param places  [n] ascending places that `visible` compares with
  template <Scalar T>
  void append(Rows<A> keys, MatrixView<const T> v, const Index* tokens, const Index* places,
              Index n, A weight) {
    gather(v, tokens, n, values_.below(count_));
    append_keys(keys, places, n, weight);
  }
  /// Appends a strip with dense rows of values.                                       // [n,E]
  void append(Rows<A> keys, Rows<A> values, const Index* places, Index n, A weight) {
    for (Index s = 0; s < n; ++s) std::copy_n(values.row(s), width_, values_.row(count_ + s));
    append_keys(keys, places, n, weight);
  }
  /// Appends a strip without values, of which E is 0.
  void append_keys(Rows<A> keys, const Index* places, Index n, A weight) {
    for (Index s = n; s < kStripTokens; ++s) std::fill_n(keys.row(s), features_, A(0));
    transpose_scaled(weight, keys.data, keys.stride, kStripTokens, features_,
                     transposed_ + count_ * features_, kStripTokens);
    std::copy_n(places, n, places_ + count_);
    count_ += n;
  }

  /// scores[r, j] = queries[r] . key j of tile t for the keys j < seen[r]; seen ascends. Computes
  /// panel by panel of keys, for the queries that see any key of the panel. Other scores are
  /// overwritten or left. With Start::kTarget it adds to scores of the same `seen`.
  void score(Rows<A> queries, const Index* seen, Index rows, Index t, Rows<A> scores,
             Prefetch* next = nullptr, Start start = Start::kZero) const {
    const Index most = rows > 0 ? seen[rows - 1] : 0;
    for (Index col = 0, first = 0; col < most; col += kPanel<A>) {
      while (seen[first] <= col) ++first;
      multiply<A>({.out = scores.below(first).right_of(col),
                   .a = queries.below(first).matrix(rows - first, features_),
                   .b = keys(t).right_of(col),
                   .cols = std::min(kPanel<A>, round_up(most, kRowAlignment) - col),
                   .start = start,
                   .next = next});
    }
  }

  /// outputs[r] += sum_{j < seen[r]} scores[r, j] v_j over tile t; seen ascends.
  void add_values(Rows<A> scores, const Index* seen, Index rows, Index t, Rows<A> outputs,
                  Prefetch* next = nullptr) const {
    Product<A> product{.out = outputs,
                       .a = scores.matrix(rows, kStripTokens),
                       .b = values(t),
                       .cols = width_,
                       .start = Start::kTarget,
                       .next = next};
    ColumnSpan spans[kStripTokens];
    if (rows > 0 && seen[0] == seen[rows - 1]) {
      product.a.cols = seen[0];
    } else {
      for (Index r = 0; r < rows; ++r) spans[r] = {0, seen[r]};
      product.spans = spans;
    }
    multiply(product);
  }

 private:
  Index features_ = 0;       // D
  Index width_ = 0;          // E
  A* transposed_ = nullptr;  // [tiles, D, 64]
  Rows<A> values_;           // [tiles * 64, E]
  Index* places_ = nullptr;  // [count]
  Index count_ = 0;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
