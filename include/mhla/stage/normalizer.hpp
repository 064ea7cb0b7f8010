#pragma once

/// \file
/// Stage 5 of 5: what the read-out is divided by.
///
///     NoNormalizer    1                                  language and released video models
///     KeySum          phi(q_t) . z~_i + eps              the paper; weights of a token sum to 1
///     CrossQuery      sum_b m_ib phi(q_bw) . z_b + eps   released vision models
///
/// t is a query token in block i, w its slot there, and q_bw the query in slot w of block b: the
/// CrossQuery denominator mixes other tokens' queries. It is no normalisation, but weights trained
/// with it need it; it wants as many query blocks as key blocks, all of one size, and is not
/// causal.
///
/// Adjoint, from the gradients dr_t of what is multiplied by scale in den_t (read_out.hpp):
///
///     KeySum      dphi(q_t) += dr_t z~_i         dz~_i  = sum_{t in i} dr_t phi(q_t)
///     CrossQuery  ds_bw = sum_i m_ib dr_iw       dm_ib += sum_w s_bw dr_iw
///                 dphi(q_bw) += ds_bw z_b        dz_b   = sum_w ds_bw phi(q_bw)
///
/// with s_bw = phi(q_bw) . z_b. Cost: 2*N*D flops, the adjoint twice as much.
/// Source: arXiv:2601.07832, section 4.1, eq. (4); released vision layers.

#include <cmath>
#include <concepts>
#include <limits>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/packet.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/partition.hpp"
#include "mhla/stage/strip.hpp"

namespace mhla::inline MHLA_TARGET {

/// Divides by nothing.
struct NoNormalizer {};

/// Divides by the sum of the token's own weights, plus eps. A token whose weights sum to exactly 0
/// with eps = 0 gets 0 / 0 = NaN, as the formula says.
struct KeySum {
  double eps = 0;
};

/// Divides by the mixture of other blocks' query-key sums in the same slot, plus eps.
struct CrossQuery {
  double eps = 1e-6;
};

template <class Z>
concept Normalizer =
    std::same_as<Z, NoNormalizer> || std::same_as<Z, KeySum> || std::same_as<Z, CrossQuery>;

/// A normaliser whose denominators read nothing later than the token itself.
template <class Z>
concept CausalNormalizer = Normalizer<Z> && !std::same_as<Z, CrossQuery>;

namespace detail {

/// True where denominators are made from key sums.
template <Normalizer Z>
inline constexpr bool kUsesKeySums = !std::same_as<Z, NoNormalizer>;

/// Throws unless the blocks and the mixing matrix suit CrossQuery.
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

/// Scratch of CrossQuery: slot sums s_bw = phi(q_bw) . z_b, and their mixtures for one group.
template <class A>
struct SlotSums {
  A* sums = nullptr;  ///< [M,W]
  Index slots = 0;    ///< W

  SlotSums(const char* function, Arena& arena, Index m, Index w)
      : sums(arena.take<A>(function, {m, w})), slots(w) {}

  A* block(Index b) const { return sums + b * slots; }
};

/// denominators[s] = queries[s] . z~ + eps.                                   // [count]
template <class A>
void key_sum_denominators(Rows<A> queries, Index count, Index d, const A* mixed_key_sum, A eps,
                          A* denominators) {
  for (Index s = 0; s < count; ++s) {
    denominators[s] = dot(queries.row(s), mixed_key_sum, d) + eps;
  }
}

/// denominators[s] = mixed_sums[slots[s]] + eps.                               // [count]
template <class A>
void slot_denominators(const A* mixed_sums, const Index* slots, Index count, A eps,
                       A* denominators) {
  for (Index s = 0; s < count; ++s) denominators[s] = mixed_sums[slots[s]] + eps;
}

/// Adjoint of rows[s] . key_sum: drows[s] (+)= factors[s] key_sum, dkey_sum += sum_s factors[s]
/// rows[s].
template <class A>
void key_sum_adjoint(Start start, const A* factors, Rows<A> rows, Index count, Index d,
                     const A* key_sum, Rows<A> drows, A* dkey_sum) {
  multiply(start, Target<A>{drows.data, drows.stride}, LeftRows<A>{factors, 1},
           RightOperand<A>{key_sum, d}, count, d, 1);
  multiply(Start::kTarget, Target<A>{dkey_sum, d}, LeftRows<A>{factors, count},
           RightOperand<A>{rows.data, rows.stride}, 1, d, count);
}

/// rows[s] /= denominators[s], as write_mixture does it: see reciprocals and divide_others.
template <class A>
void divide_rows(Rows<A> rows, Index count, Index e, const A* denominators) {
  for (Index s = 0; s < count; ++s) {
    const A reciprocal = 1 / denominators[s];
    if (!std::isnormal(reciprocal)) {
      for (Index j = 0; j < e; ++j) rows.row(s)[j] /= denominators[s];
    } else {
      scale(reciprocal, rows.row(s), e);
    }
  }
}

/// factors[s] = 1 / denominators[s], by which a row is multiplied instead of being divided; 1 where
/// that is not a normal number (tiny, huge and infinite denominators, NaN): divide_others.
template <class A>
void reciprocals(const A* denominators, Index count, A* factors) {
  transform(denominators, factors, count, [](auto p) {
    using namespace Eigen::internal;
    using P = decltype(p);
    const P one = pset1<P>(A(1)), reciprocal = pdiv(one, p), size = pabs(reciprocal);
    const P normal = pand(pcmp_le(pset1<P>(std::numeric_limits<A>::min()), size),
                          pcmp_le(size, pset1<P>(std::numeric_limits<A>::max())));
    return pselect(normal, reciprocal, one);
  });
}

/// Divides the rows that could not be multiplied by a reciprocal. Row s starts at
/// data + rows[s] * stride.
template <class A>
void divide_others(A* data, Index stride, const Index* rows, Index count, Index e,
                   const A* denominators, const A* factors) {
  for (Index s = 0; s < count; ++s) {
    if (factors[s] != 1 || std::isnormal(1 / denominators[s])) continue;
    for (Index j = 0; j < e; ++j) data[rows[s] * stride + j] /= denominators[s];
  }
}

}  // namespace detail
}  // namespace mhla::inline MHLA_TARGET
