#pragma once

/// \file
/// Products of rows with rows, both contiguous:
///
///     c[r, j] = sum_k a[r, k] b[j, k]        a [rows,depth], b [cols,depth]
///
/// For long rows: sums are kept lane by lane and added up at the end of the row, so a row of b is
/// never transposed. Law: every element has the bits of dot(a[r], b[j], depth).
/// Cost: 2 * rows * cols * depth flops, and one sum over the lanes of a packet for each element.

#include "mhla/core/arch.hpp"
#include "mhla/core/packet.hpp"
#include "mhla/core/scalar.hpp"

// A packet as a template argument loses its alignment attribute; nothing here depends on it.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"
#endif

namespace mhla::inline MHLA_TARGET::detail {

/// Rows of a and of b whose products are summed together: half of the registers hold sums. Many of
/// a, since b is the larger one and comes from farther away.
inline constexpr int kInnerRows = kVectorRegisters / 4;
inline constexpr int kInnerCols = 2;

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

/// One tile of kRows x kCols elements, the first one being (row, col).
template <int kRows, int kCols, class A, class To>
void inner_tile(const A* a, Index a_stride, const A* b, Index b_stride, Index depth, Index row,
                Index col, To& to) {
  using P = Packet<A>;
  P sum[kRows][kCols];
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MHLA_UNROLL
    for (int c = 0; c < kCols; ++c) sum[r][c] = Eigen::internal::pset1<P>(A(0));
  }
  Index k = 0;
  for (; k + kLanes<P> <= depth; k += kLanes<P>) {
    add_inner(
        a + k, a_stride, b + k, b_stride, [](const A* x) { return load<A, P>(x); }, sum);
  }
  if (k > 0 && k < depth) {
    const Index tail = depth - k;
    add_inner(
        a + depth, a_stride, b + depth, b_stride,
        [tail](const A* end) { return load_tail<P>(end, tail, A(0)); }, sum);
  } else if (k < depth) {
    add_inner(
        a, a_stride, b, b_stride, [depth](const A* x) { return load_partial<P>(x, depth, A(0)); },
        sum);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) to(row + r, col + c, Eigen::internal::predux(sum[r][c]));
  }
}

/// All columns of `rows` rows, the first of them `row`; short row counts by halving the tile.
template <int kRows, class A, class To>
void inner_rows(const A* a, Index a_stride, Index rows, const A* b, Index b_stride, Index cols,
                Index depth, Index row, To& to) {
  for (; rows >= kRows; rows -= kRows, row += kRows, a += kRows * a_stride) {
    Index c = 0;
    for (; c + kInnerCols <= cols; c += kInnerCols) {
      inner_tile<kRows, kInnerCols>(a, a_stride, b + c * b_stride, b_stride, depth, row, c, to);
    }
    for (; c < cols; ++c) {
      inner_tile<kRows, 1>(a, a_stride, b + c * b_stride, b_stride, depth, row, c, to);
    }
  }
  if constexpr (kRows > 1) {
    if (rows > 0) {
      inner_rows<kRows / 2>(a, a_stride, rows, b, b_stride, cols, depth, row, to);
    }
  }
}

/// Calls to(r, j, a[r] . b[j]) for all r < rows and j < cols.
template <class A, class To>
void inner_products(const A* a, Index a_stride, Index rows, const A* b, Index b_stride, Index cols,
                    Index depth, To&& to) {
  inner_rows<kInnerRows>(a, a_stride, rows, b, b_stride, cols, depth, 0, to);
}

}  // namespace mhla::inline MHLA_TARGET::detail

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
