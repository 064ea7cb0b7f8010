#pragma once

/// \file
/// The register-tiled product of all stages:
///
///     C[r, :] (+)= sum_k A[r, k] B[k, :]        C [rows,cols], A [rows,depth], B [depth,cols]
///
/// A tile of R rows by V packets of C stays in registers while k runs. Elements of A are broadcast,
/// rows of B are loaded. A has any strides, and each of its rows has all columns or a span of them.
/// Columns of B and C are contiguous. Rows of C may be tokens of a tensor. Each accumulator type
/// has one micro-kernel (micro_kernel.hpp).
///
/// Law: every element of C is one chain of multiply-adds over k in ascending order, started from 0
/// or from C. Its bits do not depend on its place in a tile, on alignment, or on the split of a
/// long depth into calls. The library's bitwise promises rest on this.
/// Cost: 2*rows*cols*depth flops; a step of a full tile has R broadcasts and V loads.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/micro_kernel.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/kernel/unit.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Columns of a panel of C.
template <class A>
inline constexpr Index kPanel = kTile.vectors* kLanes<Packet<A>>;

/// Columns of A that a panel is multiplied by at a time. This many rows of B stay in L1, with some
/// rows of A, while all rows of C are computed. Products of few rows take all columns: storing
/// their C costs more.
template <class A>
inline constexpr Index kDepth = 24576 / (kPanel<A> * Index{sizeof(A)});

/// Multiplies a panel of kVectors packets at column `col`: tiles of kRows rows while they fit, then
/// single rows.
template <bool kSpans, class P, int kVectors, int... kRows, class A>
MHLA_NOINLINE void multiply_panel(const Product<A>& p, Index col) {
  const ColumnSpan within = kSpans ? p.within : ColumnSpan{0, p.a.cols};
  if (within.end - within.begin > kDepth<A> && p.a.rows > 4 * kTile.rows) {
    Product<A> part = p;
    for (Index k = within.begin; k < within.end; k += kDepth<A>) {
      const Index end = std::min(k + kDepth<A>, within.end);
      if constexpr (kSpans) {
        part.within = {k, end};
      } else {
        part.a = {p.a.data + k * p.a.col_stride, p.a.rows, end - k, p.a.row_stride, p.a.col_stride};
        part.b = p.b.below(k);
      }
      part.start = k == within.begin ? p.start : Start::kTarget;
      part.factors = end < within.end ? nullptr : p.factors;
      multiply_panel<kSpans, P, kVectors, kRows...>(part, col);
    }
    return;
  }
  Index row = 0;
  const auto tiles = [&]<int kTileRows>() {  // fewer with spans: compiles faster
    if constexpr (!kSpans || kTileRows >= 4) {
      if (p.a.rows - row < kTileRows) return;
      row = multiply_tiles<P, kTileRows, kVectors, kSpans>(p, row, col);
    }
  };
  (tiles.template operator()<kRows>(), ...);
  const ColumnSpan cols{col, col + kVectors * kLanes<P>};
  for (; row < p.a.rows; ++row) {
    multiply_row(p, row, kSpans ? ColumnSpan::both(within, p.spans[row]) : within, cols, p.start);
  }
}

/// True if tiles of two packets have as many sums as tiles of three, in rows of six. Long rows of B
/// come from L2, a page or so apart. Two packets of AVX2 are one cache line of such a row, where
/// three packets touch two lines. Pairs save 4 % of a whole causal call with values 256 wide, but
/// cost 11 % with products of 16 rows.
inline constexpr bool kPairsFillLines = 2 * kTile.narrow_rows == kTile.vectors * kTile.rows;
inline constexpr Index kTallRows = 4 * kTile.narrow_rows;
template <class A>
inline constexpr Index kLongRow = 32 * kLanes<Packet<A>>;

/// C (+)= A B in panels of columns from the widest to single ones.
template <bool kSpans, class A>
MHLA_NOINLINE void multiply_panels(const Product<A>& p) {
  using P = Packet<A>;
  using Half = typename Eigen::internal::unpacket_traits<P>::half;
  constexpr Index kWidth = kLanes<P>;
  eigen_assert(p.b.order == nullptr);
  if (p.a.rows == 1) {
    return multiply_row(p, 0, kSpans ? p.spans[0] : ColumnSpan{0, p.a.cols}, {0, p.cols}, p.start);
  }
  Index col = 0;
  if constexpr (kTile.vectors > 2) {  // until a whole number of pairs is left
    const bool in_pairs =
        !kSpans && kPairsFillLines && p.a.rows >= kTallRows && p.cols >= kLongRow<A>;
    Index left = in_pairs ? 0 : p.cols / kWidth;
    for (; left > 4 || left == 3; left -= kTile.vectors, col += kPanel<A>) {
      multiply_panel<kSpans, P, kTile.vectors, kTile.rows, 4, 2>(p, col);
    }
  }
  for (; col + 2 * kWidth <= p.cols; col += 2 * kWidth) {
    multiply_panel<kSpans, P, 2, kTile.narrow_rows, 4, 2>(p, col);
  }
  if constexpr (kSpans) {
    for (Index row = 0; row < p.a.rows && col < p.cols; ++row) {
      multiply_row(p, row, p.spans[row], {col, p.cols}, p.start);
    }
  } else {
    for (; col + kWidth <= p.cols; col += kWidth) {
      multiply_panel<false, P, 1, kTile.narrow_rows>(p, col);
    }
    if constexpr (kWidth > 4 && kLanes<Half> < kWidth) {
      for (; col + kLanes<Half> <= p.cols; col += kLanes<Half>) {
        multiply_panel<false, Half, 1, kTile.narrow_rows>(p, col);
      }
    }
    if constexpr (kWidth > 1) {
      for (; col < p.cols; ++col) multiply_panel<false, A, 1, kTile.narrow_rows>(p, col);
    }
  }
}

/// Approximate number of tiles of a product with C [rows,cols].
template <class A>
constexpr Index tiles_of(Index rows, Index cols) {
  return ceil_div(rows, kTile.rows) * ceil_div(cols, kPanel<A>);
}

/// Takes rows of a banded A from `row` on, tile by tile, while the union of their spans is at most
/// twice the widest span. A panel reads the rows of B in this union, which are pages apart where a
/// band is long. Sets the rows and columns of `part`.
template <class A>
void take_near_rows(const Product<A>& p, Index row, Product<A>& part) {
  ColumnSpan any{p.a.cols, 0};
  Index rows = 0, widest = 0;
  while (row + rows < p.a.rows) {
    ColumnSpan more = any;
    const Index end = std::min(rows + kTile.rows, p.a.rows - row);
    for (Index r = rows; r < end; ++r) {
      const ColumnSpan span = p.spans[row + r];
      if (span.begin < span.end) more = ColumnSpan::either(more, span);
      widest = std::max(widest, span.end - span.begin);
    }
    if (rows > 0 && more.end - more.begin > 2 * widest) break;
    any = more;
    rows = end;
  }
  part.out = p.out.below(row);
  part.a = p.a.middle_rows(row, rows);
  part.factors = p.factors == nullptr ? nullptr : p.factors + row;
  part.spans = p.spans + row;
  part.within = {any.begin, std::max(any.begin, any.end)};
}

template <class A>
void multiply(const Product<A>& p) {
  if (p.spans == nullptr) return multiply_panels<false>(p);
  Product<A> part = p;
  for (Index row = 0; row < p.a.rows; row += part.a.rows) {
    take_near_rows(p, row, part);
    multiply_panels<true>(part);
  }
}

/// Columns of a stretch: 512 bytes per row.
template <class A>
inline constexpr Index kStretch = 8 * kBufferAlignment / Index{sizeof(A)};

/// C (+)= A B in stretches of columns, for B and C beyond L2 in long rows, as in mixing. Meanwhile
/// the next stretch of B and C is prefetched row by row; p.next is not read. A single panel takes a
/// line or two of every row, each from another page, three times as slowly. Stretches save 12 to
/// 18 % of a whole causal call with 4 MB of summaries in 32 blocks. They save 6 to 15 % of calls
/// with bands.
template <class A>
void multiply_stretches(const Product<A>& p) {
  Product<A> part = p;
  Prefetch next(tiles_of<A>(p.a.rows, kStretch<A>), p.b.order, p.a.cols,
                MatrixView<const A>{p.b.data, p.a.cols, kStretch<A>, p.b.stride});
  next.add(p.out.order, p.a.rows,
           MatrixView<const A>{p.out.data, p.a.rows, kStretch<A>, p.out.stride});
  for (Index col = 0; col < p.cols; col += part.cols) {
    part.out = p.out.right_of(col);
    part.b = p.b.right_of(col);
    part.cols = std::min(kStretch<A>, p.cols - col);
    part.next = col + part.cols < p.cols ? &next : nullptr;
    next.move(kStretch<A> * Index{sizeof(A)});
    multiply(part);
    if (part.next != nullptr) next.finish();
  }
}

/// Writes `bias` [c.cols] to all rows of c, or nothing if it is null.
/// \return the start of a product that adds A B to it
template <class A>
Start start_from(const A* bias, const MatrixView<A>& c) {
  for (Index r = 0; r < c.rows && bias != nullptr; ++r) std::copy_n(bias, c.cols, c.row(r));
  return bias == nullptr ? Start::kZero : Start::kTarget;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
