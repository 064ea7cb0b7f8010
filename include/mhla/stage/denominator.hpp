#pragma once

/// \file
/// Stage 5 of 5: sums r_t that a normaliser turns into denominators, and division by these.
///
///     kToken       r_t  = phi(q_t) . z~_i
///     kCrossQuery  r_iw = sum_b m_ib s_bw,   s_bw = phi(q_bw) . z_b
///
/// Adjoint, from the gradients dr_t:
///
///     kToken       dphi(q_t) += dr_t z~_i         dz~_i  = sum_{t in i} dr_t phi(q_t)
///     kCrossQuery  ds_bw = sum_i m_ib dr_iw       dm_ib += sum_w s_bw dr_iw
///                  dphi(q_bw) += ds_bw z_b        dz_b   = sum_w ds_bw phi(q_bw)
///
/// Cost: 2*N*D flops, the adjoint twice as much.
/// Source: arXiv:2601.07832, section 4.1, eq. (4); released vision layers.

#include <limits>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/policy/normalizer.hpp"
#include "mhla/policy/partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// sums[s] = queries[s] . z.                                                       // [count]
template <class A>
MHLA_NOINLINE void sum_weights(Rows<A> queries, Index count, Index d, const A* z, A* sums) {
  for (Index s = 0; s < count; ++s) sums[s] = dot<A>(queries.row(s), z, d);
}

/// Adjoint of rows[s] . z: drows[s] (+)= factors[s] z, dz += sum_s factors[s] rows[s].
template <class A>
void sum_weights_adjoint(Start start, const A* factors, Rows<A> rows, Index count, Index d,
                         const A* z, Rows<A> drows, A* dz) {
  multiply<A>({.out = drows, .a = {factors, count, 1, 1}, .b = {z, d}, .cols = d, .start = start});
  multiply<A>({.out = {dz, d},
               .a = {factors, 1, count, count},
               .b = rows,
               .cols = d,
               .start = Start::kTarget});
}

/// Sums s_bw of all slots of all blocks, or gradients of these sums.
template <class A>
struct SlotSums {
  A* sums = nullptr;  ///< [M,W]
  Index places = 0;   ///< W; 0 unless CrossQuery

  SlotSums(const char* function, Arena& arena, Index m, Index w)
      : sums(arena.take<A>(function, {m, w})), places(w) {}

  A* block(Index b) const { return sums + b * places; }
  Rows<A> rows() const { return {sums, places}; }
};

/// Throws unless the blocks suit a normaliser that reads kCrossQuery sums.
template <Partition P>
void expect_cross_query(const char* function, const P& query_blocks, Index key_blocks) {
  const Index m = query_blocks.blocks();
  if (m != key_blocks) {
    fail_option(function, "normalizer",
                "is CrossQuery with " + std::to_string(m) + " query blocks and " +
                    std::to_string(key_blocks) + " key blocks",
                "as many query blocks as key blocks");
  }
  for (Index b = 1; b < m; ++b) {
    if (query_blocks.block_size(b) != query_blocks.block_size(0)) {
      fail_option(function, "normalizer",
                  "is CrossQuery with blocks of " + std::to_string(query_blocks.block_size(0)) +
                      " and " + std::to_string(query_blocks.block_size(b)) + " tokens",
                  "query blocks of one size");
    }
  }
}

/// factors[s] = 1 / denominators[s], to multiply rows instead of dividing them. The factor is 1
/// where the reciprocal is no normal number (0, tiny, huge and infinite denominators, NaN);
/// divide_without_reciprocal divides these rows. A reciprocal that overflows may round to the
/// largest number.
template <class A>
MHLA_NOINLINE void reciprocals(const A* denominators, Index count, A* factors) {
  transform(denominators, factors, count, [](auto p) {
    using namespace Eigen::internal;
    using P = decltype(p);
    // A sum, because clang++ would divide before a selection and raise the flag of 1 / 0.
    const P one = pset1<P>(A(1)), divisor = padd(p, pand(pcmp_eq(p, pset1<P>(A(0))), one));
    const P reciprocal = pdiv(one, divisor), size = pabs(reciprocal);
    const P normal = pand(pcmp_le(pset1<P>(std::numeric_limits<A>::min()), size),
                          pcmp_lt(size, pset1<P>(std::numeric_limits<A>::max())));
    return pselect(normal, reciprocal, one);
  });
}

/// Divides the rows that have no normal reciprocal.
template <class A>
MHLA_NOINLINE void divide_without_reciprocal(Rows<A> rows, Index count, Index e,
                                             const A* denominators, const A* factors) {
  for (Index s = 0; s < count; ++s) {
    const A den = denominators[s];
    // A factor of 1 is a reciprocal only of a denominator near 1.
    if (factors[s] != 1 || (A(0.5) < den && den < A(2))) continue;
    for (Index j = 0; j < e; ++j) rows.row(s)[j] = quotient(rows.row(s)[j], den);
  }
}

/// rows[s] /= denominators[s]; `factors` is scratch.
template <class A>
MHLA_NOINLINE void divide_rows(Rows<A> rows, Index count, Index e, const A* denominators,
                               A* factors) {
  reciprocals(denominators, count, factors);
  for (Index s = 0; s < count; ++s) scale(factors[s], rows.row(s), e);
  divide_without_reciprocal(rows, count, e, denominators, factors);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
