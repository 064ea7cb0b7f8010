#pragma once

/// \file
/// Stage 5 of 5: every query reads its block's mixture.
///
///     o_t = phi(q_t)^T S~_i / den_t     [E],   t in block i
///
/// The denominators are the normaliser's (normalizer.hpp). Outputs are assigned, rounded once from
/// the accumulator to the stored type. Cost: 2*N*D*E flops, N*(D+E) reads and writes.
/// Source: arXiv:2601.07832, section 4.1, eq. (4).

#include "mhla/core/arch.hpp"
#include "mhla/core/tile.hpp"
#include "mhla/stage/normalizer.hpp"
#include "mhla/stage/strip.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// Scratch of one worker that reads queries and writes outputs.
template <class A>
struct QueryScratch {
  A* raw = nullptr;            ///< [widest query before the feature map]
  Rows<A> queries;             ///< [strip, D], the numerator's
  Rows<A> normalizer_queries;  ///< [strip, Dz], the denominator's; `queries` where they are one
  Rows<A> outputs;             ///< [strip, E]
  A* denominators = nullptr;   ///< [strip]

  QueryScratch() = default;
  /// \param dz  features of the denominator's own queries, 0 where it has none
  QueryScratch(const char* function, Arena& arena, Index width, Index d, Index dz, Index e)
      : raw(arena.take<A>(function, width)),
        queries(function, arena, kStripTokens, d),
        normalizer_queries(queries),
        outputs(function, arena, kStripTokens, e),
        denominators(arena.take<A>(function, kStripTokens)) {
    if (dz > 0) normalizer_queries = Rows<A>(function, arena, kStripTokens, dz);
  }
};

/// Rows scale * phi(q) of a strip.
template <Scalar T, class A, class Map>
void gather_queries(MatrixView<const T> q, const Index* tokens, Index count, const Map& map,
                    A factor, A* raw, Rows<A> queries) {
  gather_features(q, tokens, count, map, raw, queries);
  if (factor == A(1)) return;
  for (Index s = 0; s < count; ++s) scale(factor, queries.row(s), map.features(q.cols));
}

/// outputs = queries * S~.                                                    // [count,E]
template <class A>
void read_mixture(Rows<A> queries, Index count, Index d, const A* mixture, Index e,
                  Rows<A> outputs) {
  multiply<A>(Start::kZero, {outputs.data, outputs.stride}, {queries.data, queries.stride, 1},
              {mixture, e}, count, e, d);
}

}  // namespace mhla::inline MHLA_TARGET::detail
