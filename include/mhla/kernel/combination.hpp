#pragma once

/// \file
/// Linear combination of listed rows, as a row of a sparse matrix needs it:
///
///     out[j] (+)= sum_n values[n] * rows[blocks[n]][j]
///
/// n ascends, and each element is one chain of multiply-adds in registers. Bits do not depend on
/// the split of columns. They are those of `multiply` with 0 for all other coefficients.
/// Cost: 2*count*cols flops; count rows are read.

#include "mhla/core/arch.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Coefficients of some rows.
template <class A>
struct Combination {
  const A* values;
  const Index* blocks;  ///< the rows
  Index count;
};

/// Computes columns [0, kVectors packets) of combine_rows.
template <class P, int kVectors, class A>
inline void combine_panel(const Combination<A>& c, Rows<const A> rows, Start start, A* out) {
  P sum[kVectors];
  MHLA_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    sum[i] =
        start == Start::kZero ? Eigen::internal::pset1<P>(A(0)) : load<A, P>(out + i * kLanes<P>);
  }
  for (Index n = 0; n < c.count; ++n) {
    const P factor = Eigen::internal::pset1<P>(c.values[n]);
    const A* const row = rows.row(c.blocks[n]);
    MHLA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      sum[i] = multiply_add(factor, load<A, P>(row + i * kLanes<P>), sum[i]);
    }
  }
  MHLA_UNROLL
  for (int i = 0; i < kVectors; ++i) store(out + i * kLanes<P>, sum[i]);
}

/// Writes the combination, or adds it to `out` [cols].
template <class A>
void combine_rows(const Combination<A>& c, Rows<const A> rows, Index cols, Start start, A* out) {
  for_each_panel<A>(cols, [&]<class P, int kVectors>(Index j) {
    combine_panel<P, kVectors>(c, rows.right_of(j), start, out + j);
  });
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
