#pragma once

/// \file
/// Products of rows with rows, both contiguous:
///
///     c[r, j] += sum_k a[r, k] b[j, k]        a [rows,depth], b [cols,depth]
///
/// For long rows: each lane keeps a sum, added up at the end of the row, so b is never transposed.
/// Law: every element grows by the bits of dot(a[r], b[j], depth).
/// Cost: 2*rows*cols*depth flops, and per element one sum over the lanes of a packet.

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Register tile, with half of the registers as accumulators. It has more rows of a, since b is
/// larger and lies in L2 or beyond.
inline constexpr int kInnerRows = kVectorRegisters / 4;
inline constexpr int kInnerCols = 2;
/// Depth of the parts that longer rows are cut into. kInnerRows rows of a part stay in L1 (32 KB of
/// float), and all of b in L2.
inline constexpr Index kInnerDepth = 8192 / kInnerRows;

/// sum[r][c] += packet_of(a[r]) * packet_of(b[c]).
template <class P, int kRows, int kCols, class A, class PacketOf>
MHLA_INLINE inline void add_inner(const A* a, Index a_stride, const A* b, Index b_stride,
                                  PacketOf packet_of, P (&sum)[kRows][kCols]) {
  P right[kCols];
  MHLA_UNROLL
  for (int c = 0; c < kCols; ++c) right[c] = packet_of(b + c * b_stride);
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const P left = packet_of(a + r * a_stride);
    MHLA_UNROLL
    for (int c = 0; c < kCols; ++c) sum[r][c] = multiply_add(left, right[c], sum[r][c]);
  }
}

template <int kRows, int kCols, class A>
void add_inner_tile(Rows<const A> a, Rows<const A> b, Index depth, Rows<A> c) {
  using P = Packet<A>;
  P sum[kRows][kCols];
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MHLA_UNROLL
    for (int j = 0; j < kCols; ++j) sum[r][j] = Eigen::internal::pset1<P>(A(0));
  }
  Index k = 0;
  for (; k + kLanes<P> <= depth; k += kLanes<P>) {
    add_inner(
        a.data + k, a.stride, b.data + k, b.stride, [](const A* x) { return load<A, P>(x); }, sum);
  }
  const Index tail = depth - k;
  if (k > 0 && tail > 0) {
    add_inner(
        a.data + depth, a.stride, b.data + depth, b.stride,
        [tail](const A* end) { return load_tail<P>(end, tail, A(0)); }, sum);
  } else if (tail > 0) {
    add_inner(
        a.data, a.stride, b.data, b.stride,
        [tail](const A* x) { return load_partial<P>(x, tail, A(0)); }, sum);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kCols; ++j) c.row(r)[j] += Eigen::internal::predux(sum[r][j]);
  }
}

/// c[r, j] += a[r] . b[j] for r < rows, j < cols; rows without an order.
template <class A>
void add_inner_products(Rows<const A> a, Index rows, Rows<const A> b, Index cols, Index depth,
                        Rows<A> c) {
  const auto tiles = [&]<int kRows>(Index r) {
    Index j = 0;
    for (; j + kInnerCols <= cols; j += kInnerCols) {
      add_inner_tile<kRows, kInnerCols>(a.below(r), b.below(j), depth, c.below(r).right_of(j));
    }
    for (; j < cols; ++j) {
      add_inner_tile<kRows, 1>(a.below(r), b.below(j), depth, c.below(r).right_of(j));
    }
  };
  Index r = 0;
  for (; r + kInnerRows <= rows; r += kInnerRows) tiles.template operator()<kInnerRows>(r);
  for (; r < rows; ++r) tiles.template operator()<1>(r);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
