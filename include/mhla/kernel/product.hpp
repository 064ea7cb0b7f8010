#pragma once

/// \file
/// The register-tiled product of all stages:
///
///     C[r, :] (+)= sum_k A[r, k] B[k, :]        C [rows,cols], A [rows,depth], B [depth,cols]
///
/// A tile of R rows by V packets of C stays in registers while k runs; elements of A are broadcast,
/// rows of B are loaded. A has any strides; columns of B and C are contiguous; rows of C may be
/// tokens of a tensor. Each accumulator type has one micro-kernel, which banded products use too.
///
/// Law: every element of C is one chain of multiply-adds over k in ascending order, started from 0
/// or from C. Its bits depend neither on its place in a tile, nor on alignment, nor on how a long
/// depth is split into calls; the library's bitwise promises rest on this.
/// Cost: 2 * rows * cols * depth flops; a step of a full tile has R broadcasts and V loads.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/kernel/unit.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Initial value of a product: 0, or C.
enum class Start { kZero, kTarget };

/// Columns [begin, end) of a row.
struct ColumnSpan {
  Index begin, end;

  static ColumnSpan either(ColumnSpan a, ColumnSpan b) {
    return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
  }
  static ColumnSpan both(ColumnSpan a, ColumnSpan b) {
    return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
  }
};

/// C (+)= A B.
template <class A>
struct Product {
  Rows<A> out;            ///< C [rows,cols]
  MatrixView<const A> a;  ///< A [rows,depth]
  Rows<const A> b;        ///< B [depth,cols], rows without an order
  Index cols = 0;
  Start start = Start::kZero;
  /// [rows] or null: row r of C is stored times factors[r].
  const A* factors = nullptr;
  /// [rows] or null: row r of A has only the columns spans[r]; the others are never multiplied.
  const ColumnSpan* spans = nullptr;
  /// Lines to prefetch, a share with every tile, or null.
  Prefetch* next = nullptr;
};

/// Columns of a panel of C.
template <class A>
inline constexpr Index kPanel = kTile.vectors* kLanes<Packet<A>>;

/// The micro-kernel: a tile of kRows rows and kVectors packets whose first element is (row, col).
template <class P, int kRows, int kVectors, class A>
MHLA_NOINLINE void multiply_tile(const Product<A>& p, Index row, Index col) {
  if (p.next != nullptr) p.next->fetch_share();
  constexpr Index kWidth = kLanes<P>;
  A* c[kRows];  // starts of the tile's rows
  if (p.out.order == nullptr) {
    A* const first = p.out.data + row * p.out.stride + col;
    for (int r = 0; r < kRows; ++r) c[r] = first + r * p.out.stride;
  } else {
    for (int r = 0; r < kRows; ++r) c[r] = p.out.row(row + r) + col;
  }
  P sum[kRows][kVectors];
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Eigen::internal::pset1<P>(A(0));
    Eigen::internal::prefetch(c[r]);  // arrives while k runs
  }
  if (p.start == Start::kTarget) {
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load<A, P>(c[r] + v * kWidth);
    }
  }
  const Index row_stride = p.a.row_stride, a_step = p.a.col_stride, b_step = p.b.stride;
  const A* left = p.a.data + row * row_stride;  // at column k
  const A* right = p.b.data + col;              // at row k
  for (Index k = 0; k < p.a.cols; ++k, left += a_step, right += b_step) {
    P b[kVectors];
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) b[v] = load<A, P>(right + v * kWidth);
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const P factor = Eigen::internal::pset1<P>(left[r * row_stride]);
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(factor, b[v], sum[r][v]);
    }
  }
  if (p.factors != nullptr) {
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const P factor = Eigen::internal::pset1<P>(p.factors[row + r]);
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Eigen::internal::pmul(sum[r][v], factor);
    }
  }
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) store(c[r] + v * kWidth, sum[r][v]);
  }
}

/// The rows of a panel of kVectors packets at column `col`, in tiles of kRows rows as long as these
/// fit; the last kRows is 1.
template <class P, int kVectors, int... kRows, class A>
MHLA_NOINLINE void multiply_panel(const Product<A>& p, Index col) {
  Index row = 0;
  const auto tiles = [&]<int kTileRows>() {
    for (; p.a.rows - row >= kTileRows; row += kTileRows) {
      if (kTileRows == 6 && p.a.rows - row == 8) return;  // two tiles of 4
      multiply_tile<P, kTileRows, kVectors>(p, row, col);
    }
  };
  (tiles.template operator()<kRows>(), ...);
}

/// C (+)= A B of a dense A, in panels of columns from the widest to single ones.
template <class A>
MHLA_NOINLINE void multiply_dense(const Product<A>& p) {
  using P = Packet<A>;
  using Half = typename Eigen::internal::unpacket_traits<P>::half;
  constexpr Index kWidth = kLanes<P>;
  eigen_assert(p.b.order == nullptr);
  Index col = 0;
  if (p.a.rows == 1) {
    constexpr Index kWide = kTile.chains * kWidth;
    for (; col + kWide <= p.cols; col += kWide) multiply_tile<P, 1, kTile.chains>(p, 0, col);
  }
  if constexpr (kTile.vectors > 2) {  // until what is left is a whole number of pairs
    for (Index left; (left = (p.cols - col) / kWidth) > 4 || left == 3; col += kPanel<A>) {
      multiply_panel<P, kTile.vectors, kTile.rows, 2, 1>(p, col);
    }
  }
  for (; col + 2 * kWidth <= p.cols; col += 2 * kWidth) {
    multiply_panel<P, 2, kTile.chains, 4, 2, 1>(p, col);
  }
  for (; col + kWidth <= p.cols; col += kWidth) multiply_panel<P, 1, kTile.chains, 1>(p, col);
  if constexpr (kWidth > 4 && kLanes<Half> < kWidth) {
    for (; col + kLanes<Half> <= p.cols; col += kLanes<Half>) {
      multiply_panel<Half, 1, kTile.chains, 1>(p, col);
    }
  }
  if constexpr (kWidth > 1) {
    for (; col < p.cols; ++col) multiply_panel<A, 1, kTile.chains, 1>(p, col);
  }
}

/// Columns `within` of a banded A in rows [row, row + rows), without factors. The columns that all
/// of these rows have are one product; those before and behind are left to fewer rows at a time: a
/// tile, then a single row.
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
    part.factors = nullptr;
    multiply_dense(part);
  };
  const Index step = rows > kTile.rows ? kTile.rows : 1;
  const auto multiply_apart = [&](ColumnSpan span, Start first) {
    for (Index r = row; r < row + rows; r += step) {
      multiply_band(p, r, std::min(step, row + rows - r), span, first);
    }
  };
  if (any.begin == any.end && start == Start::kTarget) return;
  if (rows == 1 || any.begin == any.end) return multiply_together(any, start);
  if (common.end - common.begin < step) return multiply_apart(any, start);
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
  multiply_band(p, 0, p.a.rows, {0, p.a.cols}, p.start);
  for (Index r = 0; p.factors != nullptr && r < p.a.rows; ++r) {
    scale(p.factors[r], p.out.row(r), p.cols);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
