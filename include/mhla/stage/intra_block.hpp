#pragma once

/// \file
/// Stage 5' of 5, causal only: the part of a query's own block that it may see.
///
///     T     = m_ii tril(phi(Q_i) phi(K_i)^T)     [W,W]
///     O_i  += T V_i                              [W,E]
///     den_t += sum_j T_tj                        [W]
///
/// Query t sees the kept keys of its block up to its own slot. Later keys enter no sum, not even
/// multiplied by zero. Cost: about N*W*(D+E) flops.
/// Source: arXiv:2601.07832, section 4.2 and appendix C.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/tile.hpp"
#include "mhla/stage/strip.hpp"
#include "mhla/stage/summary.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// The kept keys and values of one block.
template <class A>
struct BlockKeys {
  A* transposed = nullptr;  ///< m_ii phi(K)^T, [D, stride]; columns past `count` are finite
  Index stride = 0;
  Rows<A> values;          ///< [W,E]
  Index* slots = nullptr;  ///< [count] ascending slots of the kept keys
  Rows<A> scores;          ///< [tile rows, W], scratch of the products
  Index count = 0;

  BlockKeys() = default;
  BlockKeys(const char* function, Arena& arena, Index w, Index d, Index e)
      : stride(round_up(w, kRowAlignment)), values(function, arena, w, e) {
    transposed = arena.take<A>(function, checked_product(function, "workspace", {d, stride}));
    slots = arena.take<Index>(function, w);
    scores = Rows<A>(function, arena, kTileRows, w);
  }

  /// Number of kept keys in slots 0..slot.
  Index visible(Index slot) const { return std::upper_bound(slots, slots + count, slot) - slots; }
};

/// Appends rows [0, strip) of dense keys and values, the keys times m_ii, to a block.
template <class A>
void append_keys(Rows<A> keys, Rows<A> values, const Index* slots, Index strip, Index d, Index e,
                 A weight, BlockKeys<A>& block) {
  for (Index s = 0; s < strip; ++s) {
    const Index column = block.count + s;
    for (Index j = 0; j < d; ++j) {
      block.transposed[j * block.stride + column] = weight * keys.row(s)[j];
    }
    std::copy_n(values.row(s), e, block.values.row(column));
    block.slots[column] = slots[s];
  }
  block.count += strip;
  // The score product works on whole vectors: give the columns of the last one a value.
  const Index end = std::min(round_up(block.count, kRowAlignment), block.stride);
  for (Index j = 0; j < d; ++j) {
    std::fill(block.transposed + j * block.stride + block.count,
              block.transposed + j * block.stride + end, A(0));
  }
}

/// Adds the visible part of a block to the outputs of a strip of its queries, and the sums of the
/// weights to `denominators` unless that is null.
/// \param slots  [count] slots of the strip's queries in the block, ascending
template <class A>
void add_intra_block(Rows<A> queries, const Index* slots, Index count, Index d, Index e,
                     const BlockKeys<A>& block, Rows<A> outputs, A* denominators) {
  for (Index first = 0; first < count; first += kTileRows) {
    const Index rows = std::min<Index>(kTileRows, count - first);
    const Index widest = block.visible(slots[first + rows - 1]);
    if (widest == 0) continue;
    multiply<A>(Start::kZero, {block.scores.data, block.scores.stride},
                {queries.row(first), queries.stride, 1}, {block.transposed, block.stride}, rows,
                round_up(widest, kRowAlignment), d);
    const Index shared = block.visible(slots[first]);
    multiply<A>(Start::kTarget, {outputs.row(first), outputs.stride},
                {block.scores.data, block.scores.stride, 1},
                {block.values.data, block.values.stride}, rows, e, shared);
    for (Index r = 0; r < rows; ++r) {
      const Index visible = block.visible(slots[first + r]);
      const A* const scores = block.scores.row(r);
      if (visible > shared) {
        multiply<A>(Start::kTarget, {outputs.row(first + r), outputs.stride},
                    {scores + shared, 0, 1}, {block.values.row(shared), block.values.stride}, 1, e,
                    visible - shared);
      }
      if (denominators != nullptr) denominators[first + r] += sum(scores, visible);
    }
  }
}

}  // namespace mhla::inline MHLA_TARGET::detail
