#pragma once

/// \file
/// Stage 5 of 5: every query reads the mixture of its block.
///
///     o_t = phi(q_t)^T S~_i / den_t     [E],   t in block i
///
/// The denominators come from the normaliser and the sums r_t (denominator.hpp). Outputs are
/// assigned, rounded once from the accumulator to the stored type.
///
/// Adjoint, from the gradient do_t, with den_t = f(scale r_t) and dn_t = scale do_t / den_t. It
/// does not need o_t. An o_t with den_t = 0 is a constant with gradients 0:
///
///     dphi(q_t) = S~_i dn_t                                                    [D]
///     dS~_i     = sum_{t in i} phi(q_t) dn_t^T                                 [D,E]
///     dr_t      = -scale f'(scale r_t) phi(q_t) . dphi(q_t) / den_t   of the dphi(q_t) above
///
/// Tangent, along dphi(q_t), dS~_i and dr_t; 0 where den_t = 0:
///
///     dn_t = dphi(q_t)^T S~_i + phi(q_t)^T dS~_i,   do_t = (dn_t - f'(r_t) dr_t o_t) / den_t [E]
///
/// Cost: 2*N*D*E flops, N*(D+E) reads and writes; the adjoint and the tangent twice the flops.
/// Source: arXiv:2601.07832, section 4.1, eq. (4).

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/policy/normalizer.hpp"
#include "mhla/stage/denominator.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Scratch of one worker that reads queries and writes outputs.
template <class A>
struct QueryScratch {
  A* raw = nullptr;            ///< queries before the feature map
  Rows<A> queries;             ///< [strip, D], the numerator's
  Rows<A> normalizer_queries;  ///< [strip, Dz], the denominator's; may be the same as `queries`
  Rows<A> outputs;             ///< [strip, E]
  A* denominators = nullptr;   ///< [strip]
  A* factors = nullptr;        ///< [strip] their reciprocals

  QueryScratch() = default;
  /// \param dz  features of the denominator's separate queries, 0 if it has none
  QueryScratch(const char* function, Arena& arena, Index raw_size, Index d, Index dz, Index e)
      : raw(arena.take<A>(function, raw_size)),
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

/// Calls write(rows) with rows for the outputs of tokens[0..count): rows of `out`, or rows of
/// scratch that are then stored to `out`.
template <class A, Scalar T, class Write>
void write_outputs(const QueryScratch<A>& scratch, const Index* tokens, Index count,
                   MatrixView<T> out, const Write& write) {
  if constexpr (std::is_same_v<T, A>) {
    if (out.col_stride == 1) {
      // Tiles without a token order save 1 to 2 % of a whole call.
      if (consecutive(tokens, count)) return write(Rows<A>{out.row(tokens[0]), out.row_stride});
      return write(Rows<A>{out.data, out.row_stride, tokens});
    }
  }
  write(scratch.outputs);
  scatter(scratch.outputs, tokens, count, out);
}

/// Writes rows tokens[0..count) of out = queries * S~ / denominators, from `scratch`. Prefetches
/// `next`.
/// \param g  mixture in its group
template <Scalar T, class A>
void write_mixture(const QueryScratch<A>& scratch, const Index* tokens, Index count,
                   const Mixtures<A>& mixtures, Index g, Prefetch& next, MatrixView<T> out) {
  reciprocals(scratch.denominators, count, scratch.factors);
  write_outputs(scratch, tokens, count, out, [&](Rows<A> rows) {
    multiply<A>({.out = rows,
                 .a = scratch.queries.matrix(count, mixtures.features),
                 .b = {mixtures.kv.row(g), out.cols},
                 .cols = out.cols,
                 .factors = scratch.factors,
                 .next = &next});
    divide_without_reciprocal(rows, count, out.cols, scratch.denominators, scratch.factors);
  });
}

/// Turns tangents dn_t of numerators into tangents of outputs.
/// \param slopes   [count] f'(r_t) dr_t, null for zeros
/// \param factors  [count] reciprocals of the denominators
template <class A>
MHLA_NOINLINE void read_out_tangent(Rows<A> outputs, Index count, Index e, const A* denominators,
                                    const A* slopes, const A* factors, Rows<A> tangents) {
  for (Index s = 0; s < count; ++s) {
    A* const row = tangents.row(s);
    if (denominators[s] == 0) {
      std::fill_n(row, e, A(0));
      continue;
    }
    if (slopes != nullptr) add_scaled<A>(-slopes[s], outputs.row(s), row, e);
    scale(factors[s], row, e);
  }
  divide_without_reciprocal(tangents, count, e, denominators, factors);
}

/// Turns sums r of weights into factors = scale / den and slopes = scale f'(scale r) / den.
/// Both are 0 for a denominator of 0, whose outputs are constants.
template <class A, class Z>  // [count]
void gradient_factors(const Z& normalizer, A* sums, Index count, A scaling, A* factors, A* slopes) {
  if (normalizer.sums() != WeightSums::kNone) scale(scaling, sums, count);
  write_slopes(normalizer, static_cast<const A*>(sums), count, slopes);
  write_denominators(normalizer, static_cast<const A*>(sums), count, factors);
  for (Index s = 0; s < count; ++s) {
    const bool constant = factors[s] == 0;
    factors[s] = constant ? A(0) : scaling / factors[s];
    slopes[s] = constant ? A(0) : slopes[s] * factors[s];
  }
}

/// dphi(Q) = dN S~^T for a strip, given S~^T [E,D].                              // [count,D]
template <class A>
void read_out_adjoint_queries(Rows<A> dn, Index count, Index d, Index e, Rows<A> transposed,
                              Rows<A> dqueries) {
  multiply<A>({.out = dqueries, .a = dn.matrix(count, e), .b = transposed, .cols = d});
}

/// dr_t of a strip, given products[t] = phi(q_t) . dphi(q_t) of the numerator.    // [count]
template <class A>
void read_out_adjoint_sums(const A* products, const A* slopes, Index count, A* dsums) {
  for (Index s = 0; s < count; ++s) dsums[s] = -slopes[s] * products[s];
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
