#pragma once

/// \file
/// The register-tiled product of all stages:
///
///     C[r, :] (+)= sum_k A[r, k] B[k, :]        C [rows,cols], A [rows,depth], B [depth,cols]
///
/// A tile of R rows by V packets of C stays in registers while k runs; elements of A are broadcast,
/// rows of B are loaded. A has any strides; columns of B and C are contiguous; rows of C may be
/// tokens of a tensor. Each accumulator type has one micro-kernel (micro_kernel.hpp), which
/// banded products use too.
///
/// Law: every element of C is one chain of multiply-adds over k in ascending order, started from 0
/// or from C. Its bits depend neither on its place in a tile, nor on alignment, nor on how a long
/// depth is split into calls; the library's bitwise promises rest on this.
/// Cost: 2 * rows * cols * depth flops; a step of a full tile has R broadcasts and V loads.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/micro_kernel.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/kernel/unit.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Columns of a panel of C.
template <class A>
inline constexpr Index kPanel = kTile.vectors* kLanes<Packet<A>>;

/// Columns of A that a panel is multiplied with at a time: so many rows of B stay in L1, with some
/// rows of A, while all rows of C go by. Not for few rows: storing their C costs more.
template <class A>
inline constexpr Index kDepth = 24576 / (kPanel<A> * Index{sizeof(A)});

/// The rows of a panel of kVectors packets at column `col`, in tiles of kRows rows as long as these
/// fit, then one by one.
template <class P, int kVectors, int... kRows, class A>
MHLA_NOINLINE void multiply_panel(const Product<A>& p, Index col) {
  if (p.a.cols > kDepth<A> && p.a.rows > 4 * kTile.rows) {
    Product<A> part = p;
    for (Index k = 0; k < p.a.cols; k += kDepth<A>) {
      part.a = {p.a.data + k * p.a.col_stride, p.a.rows, std::min(kDepth<A>, p.a.cols - k),
                p.a.row_stride, p.a.col_stride};
      part.b = p.b.below(k);
      part.start = k == 0 ? p.start : Start::kTarget;
      part.factors = k + kDepth<A> < p.a.cols ? nullptr : p.factors;
      multiply_panel<P, kVectors, kRows...>(part, col);
    }
    return;
  }
  Index row = 0;
  const auto tiles = [&]<int kTileRows>() {
    row = multiply_tiles<P, kTileRows, kVectors>(p, row, col);
  };
  (tiles.template operator()<kRows>(), ...);
  const ColumnSpan cols{col, col + kVectors * kLanes<P>};
  for (; row < p.a.rows; ++row) multiply_row(p, row, {0, p.a.cols}, cols, p.start);
}

/// Long rows of B, as mixing reads them, come from L2, a page or so apart. A pair of packets of
/// AVX2 is one cache line of such a row, where three packets touch two, and a tile of pairs has as
/// many sums if the rows of A fill tiles of six. It takes 4 % less of a whole forward call with 150
/// blocks, 3 % less of a causal one whose values are 256 wide, and with 16 blocks 11 % more.
inline constexpr bool kPairsFillLines = 2 * kTile.narrow_rows == kTile.vectors * kTile.rows;
inline constexpr Index kTallRows = 4 * kTile.narrow_rows;
template <class A>
inline constexpr Index kLongRow = 32 * kLanes<Packet<A>>;

/// C (+)= A B of a dense A, in panels of columns from the widest to single ones.
template <class A>
MHLA_NOINLINE void multiply_dense(const Product<A>& p) {
  using P = Packet<A>;
  using Half = typename Eigen::internal::unpacket_traits<P>::half;
  constexpr Index kWidth = kLanes<P>;
  eigen_assert(p.b.order == nullptr);
  if (p.a.rows == 1) return multiply_row(p, 0, {0, p.a.cols}, {0, p.cols}, p.start);
  Index col = 0;
  if constexpr (kTile.vectors > 2) {  // until what is left is a whole number of pairs
    const bool in_pairs = kPairsFillLines && p.a.rows >= kTallRows && p.cols >= kLongRow<A>;
    Index left = in_pairs ? 0 : p.cols / kWidth;
    for (; left > 4 || left == 3; left -= kTile.vectors, col += kPanel<A>) {
      multiply_panel<P, kTile.vectors, kTile.rows, 4, 2>(p, col);
    }
  }
  for (; col + 2 * kWidth <= p.cols; col += 2 * kWidth) {
    multiply_panel<P, 2, kTile.narrow_rows, 4, 2>(p, col);
  }
  for (; col + kWidth <= p.cols; col += kWidth) multiply_panel<P, 1, kTile.narrow_rows>(p, col);
  if constexpr (kWidth > 4 && kLanes<Half> < kWidth) {
    for (; col + kLanes<Half> <= p.cols; col += kLanes<Half>) {
      multiply_panel<Half, 1, kTile.narrow_rows>(p, col);
    }
  }
  if constexpr (kWidth > 1) {
    for (; col < p.cols; ++col) multiply_panel<A, 1, kTile.narrow_rows>(p, col);
  }
}

/// Columns `within` of a banded A in rows [row, row + rows). The columns that all of these rows
/// have are one product; those before and behind are left to fewer rows at a time: a tile, then a
/// single row.
template <class A>
void multiply_band(const Product<A>& p, Index row, Index rows, ColumnSpan within, Start start) {
  ColumnSpan common = within, any{within.end, within.begin};
  for (Index r = row; r < row + rows; ++r) {
    const ColumnSpan own = ColumnSpan::both(within, p.spans[r]);
    common = ColumnSpan::both(common, own);
    if (own.begin < own.end) any = ColumnSpan::either(any, own);
  }
  any.end = std::max(any.begin, any.end);
  const auto multiply_together = [&](ColumnSpan span, Start first) {
    Product<A> part = p;
    part.out = p.out.below(row);
    part.a = {p.a.data + row * p.a.row_stride + span.begin * p.a.col_stride, rows,
              span.end - span.begin, p.a.row_stride, p.a.col_stride};
    part.b = p.b.below(span.begin);
    part.start = first;
    multiply_dense(part);
  };
  const auto multiply_apart = [&](ColumnSpan span, Start first) {
    const Index step = rows > kTile.rows ? kTile.rows : 1;
    for (Index r = row; r < row + rows; r += step) {
      if (step > 1) {
        multiply_band(p, r, std::min(step, row + rows - r), span, first);
        continue;
      }
      ColumnSpan own = ColumnSpan::both(span, p.spans[r]);
      own.end = std::max(own.begin, own.end);
      if (own.begin < own.end || first == Start::kZero) {
        multiply_row(p, r, own, {0, p.cols}, first);
      }
    }
  };
  if (any.begin == any.end) {
    if (start == Start::kZero) multiply_together(any, start);
    return;
  }
  // Of many rows, a few columns in common are not worth a pass over C.
  const Index few = rows > kTile.rows ? kTile.rows : 1;
  if (common.end - common.begin < few) return multiply_apart(any, start);
  const bool before = any.begin < common.begin;
  if (before) multiply_apart({any.begin, common.begin}, start);
  multiply_together(common, before ? Start::kTarget : start);
  if (common.end < any.end) multiply_apart({common.end, any.end}, Start::kTarget);
}

/// Tiles of a product with C [rows,cols], about.
template <class A>
constexpr Index tiles_of(Index rows, Index cols) {
  return ceil_div(rows, kTile.rows) * ceil_div(cols, kPanel<A>);
}

template <class A>
void multiply(const Product<A>& p) {
  if (p.spans == nullptr) return multiply_dense(p);
  Product<A> band = p;
  band.factors = nullptr;  // until all parts are added
  multiply_band(band, 0, p.a.rows, {0, p.a.cols}, p.start);
  for (Index r = 0; p.factors != nullptr && r < p.a.rows; ++r) {
    scale(p.factors[r], p.out.row(r), p.cols);
  }
}

/// Writes `bias` [c.cols] to all rows of c, or nothing if it is null.
/// \return how a product that adds it to A B begins
template <class A>
Start start_from(const A* bias, const MatrixView<A>& c) {
  for (Index r = 0; r < c.rows && bias != nullptr; ++r) std::copy_n(bias, c.cols, c.row(r));
  return bias == nullptr ? Start::kZero : Start::kTarget;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
