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
#include "mhla/core/packet.hpp"
#include "mhla/stage/key_tiles.hpp"
#include "mhla/stage/strip.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// Adds the visible part of a block to the outputs of a strip of its queries, and the sums of the
/// weights to `denominators` unless that is null.
/// \param slots   [count] slots of the strip's queries in the block, ascending
/// \param block   keys of the block times m_ii, their slots as places, at least those visible
/// \param scores  room for [strip, strip]
template <class A>
void add_intra_block(Rows<A> queries, const Index* slots, Index count, const KeyTiles<A>& block,
                     Rows<A> scores, Rows<A> outputs, A* denominators) {
  Index visible[kStripTokens];  // keys each query sees
  for (Index r = 0; r < count; ++r) visible[r] = block.visible(slots[r]);
  const Index widest = count > 0 ? visible[count - 1] : 0;
  for (Index begin = 0, t = 0; begin < widest; begin += kStripTokens, ++t) {
    Index seen[kStripTokens];  // of them, those in tile t
    for (Index r = 0; r < count; ++r) {
      seen[r] = std::clamp<Index>(visible[r] - begin, 0, kStripTokens);
    }
    const bool all = seen[0] == seen[count - 1];
    const Index step = all ? count : kTileRows;
    for (Index r = 0; r < count; r += step) {
      const Index rows = std::min(step, count - r);
      block.score(queries.below(r), rows, t, seen[r + rows - 1], scores.below(r));
    }
    block.add_values(scores, seen, count, t, outputs);
    if (denominators == nullptr) continue;
    for (Index r = 0; r < count; ++r) denominators[r] += sum(scores.row(r), seen[r]);
  }
}

}  // namespace mhla::inline MHLA_TARGET::detail
