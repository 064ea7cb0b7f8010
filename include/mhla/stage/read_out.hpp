#pragma once

/// \file
/// Stage 5 of 5: every query reads its block's mixture.
///
///     o_t = phi(q_t)^T S~_i / den_t     [E],   t in block i
///
/// The denominators are the normaliser's (normalizer.hpp). Outputs are assigned, rounded once from
/// the accumulator to the stored type.
///
/// Adjoint, from the gradient do_t, with den_t = scale r_t + eps and dn_t = scale do_t / den_t; o_t
/// is not needed:
///
///     dphi(q_t) = S~_i dn_t                            [D]
///     dS~_i     = sum_{t in i} phi(q_t) dn_t^T         [D,E]
///     dr_t      = -scale phi(q_t) . dphi(q_t) / den_t  of the dphi(q_t) above
///
/// Cost: 2*N*D*E flops, N*(D+E) reads and writes; the adjoint twice the flops.
/// Source: arXiv:2601.07832, section 4.1, eq. (4).

#include <algorithm>
#include <array>
#include <numeric>

#include "mhla/core/arch.hpp"
#include "mhla/core/tile.hpp"
#include "mhla/stage/gather.hpp"
#include "mhla/stage/normalizer.hpp"
#include "mhla/stage/strip.hpp"
#include "mhla/stage/token_rows.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// Scratch of one worker that reads queries and writes outputs.
template <class A>
struct QueryScratch {
  A* raw = nullptr;            ///< [widest query before the feature map]
  Rows<A> queries;             ///< [strip, D], the numerator's
  Rows<A> normalizer_queries;  ///< [strip, Dz], the denominator's; `queries` where they are one
  Rows<A> outputs;             ///< [strip, E]
  A* denominators = nullptr;   ///< [strip]
  A* factors = nullptr;        ///< [strip] their reciprocals

  QueryScratch() = default;
  /// \param dz  features of the denominator's own queries, 0 where it has none
  QueryScratch(const char* function, Arena& arena, Index width, Index d, Index dz, Index e)
      : raw(arena.take<A>(function, width)),
        queries(function, arena, kStripTokens, d),
        normalizer_queries(queries),
        outputs(function, arena, kStripTokens, e),
        denominators(arena.take<A>(function, kStripTokens)),
        factors(arena.take<A>(function, kStripTokens)) {
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

/// Queries that are read out together: their rows stay in the first cache.
inline constexpr Index kReadRows = 2 * kTileRows;
static_assert(kStripTokens % kReadRows == 0);

/// The rows of scratch in their own order, as tokens.
inline constexpr auto kOwnRows = [] {
  std::array<Index, kStripTokens> rows{};
  std::iota(rows.begin(), rows.end(), Index{0});
  return rows;
}();

/// outputs = queries * S~. Asks for the rows of a lookahead meanwhile, from column c on.
template <class A>  // [count,E]
void read_mixture(Rows<A> queries, Index count, Index d, const A* mixture, Index e, Rows<A> outputs,
                  const Lookahead& lookahead = {}, Index c = 0) {
  multiply(Start::kZero, Target<A>{outputs.data, outputs.stride},
           LeftRows<A>{queries.data, queries.stride}, RightAhead<A>({mixture, e}, lookahead, c),
           count, e, d);
}

/// Rows tokens[0..count) of out = queries * S~ / denominators, where these lie in `scratch`. Asks
/// for the rows of a lookahead meanwhile, from column c on.
template <Scalar T, class A>
void write_mixture(const QueryScratch<A>& scratch, const Index* tokens, Index count, Index d,
                   const A* mixture, const Lookahead& lookahead, Index c, MatrixView<T> out) {
  reciprocals(scratch.denominators, count, scratch.factors);
  const auto multiply_to = [&](A* rows, Index stride, const Index* order) {
    multiply(Start::kZero, ScaledTokens<A>{rows, stride, order, scratch.factors},
             LeftRows<A>{scratch.queries.data, scratch.queries.stride},
             RightAhead<A>({mixture, out.cols}, lookahead, c), count, out.cols, d);
    divide_others(rows, stride, order, count, out.cols, scratch.denominators, scratch.factors);
  };
  if constexpr (std::is_same_v<T, A>) {
    if (out.col_stride == 1) {
      multiply_to(out.data, out.row_stride, tokens);
      return;
    }
  }
  multiply_to(scratch.outputs.data, scratch.outputs.stride, kOwnRows.data());
  scatter(scratch.outputs, tokens, count, out);
}

/// From sums r of weights: factors = scale / den, den = scale r + eps.             // [count]
template <class A>
void gradient_factors(const A* sums, Index count, A scale, A eps, A* factors) {
  for (Index s = 0; s < count; ++s) factors[s] = scale / (scale * sums[s] + eps);
}

/// dphi(Q) = dN S~^T for a strip, given S~^T [E,D].                              // [count,D]
template <class A>
void read_out_adjoint_queries(Rows<A> dn, Index count, Index d, Index e, RightOperand<A> transposed,
                              Rows<A> dqueries) {
  multiply(Start::kZero, Target<A>{dqueries.data, dqueries.stride}, LeftRows<A>{dn.data, dn.stride},
           transposed, count, d, e);
}

/// dr_t of a strip, given products[t] = phi(q_t) . dphi(q_t) of the numerator.    // [count]
template <class A>
void read_out_adjoint_sums(const A* products, const A* factors, Index count, A* dsums) {
  for (Index s = 0; s < count; ++s) dsums[s] = -factors[s] * products[s];
}

}  // namespace mhla::inline MHLA_TARGET::detail
