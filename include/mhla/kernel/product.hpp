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

template <class A>
MHLA_INLINE inline const A* plus_bytes(const A* p, Index bytes) {
  return reinterpret_cast<const A*>(reinterpret_cast<const char*>(p) + bytes);
}

/// Calls f(r, first element) for the rows of a tile whose first element is (row, col).
template <int kRows, class A, class F>
MHLA_INLINE inline void for_each_row(const Rows<A>& c, Index row, Index col, const F& f) {
  if (c.order == nullptr) {
    A* first = c.data + row * c.stride + col;
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r, first += c.stride) f(r, first);
  } else {
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) f(r, c.row(row + r) + col);
  }
}

/// The micro-kernel: a tile of kRows rows and kVectors packets whose first element is (row, col).
/// Few integers live in its loop: g++ spills the others to vector registers, where they queue
/// behind the multiply-adds.
template <class P, int kRows, int kVectors, class A>
MHLA_NOINLINE void multiply_tile(const Product<A>& p, Index row, Index col) {
  constexpr Index kWidth = kLanes<P>;
  const Index depth = p.a.cols;
  const Prefetch::Lines next = p.next == nullptr ? Prefetch::Lines() : p.next->share(depth);
  P sum[kRows][kVectors];
  if (p.start == Start::kZero) {
    for_each_row<kRows>(p.out, row, col, [&](int r, const A* c) {
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Eigen::internal::pset1<P>(A(0));
      Eigen::internal::prefetch(c);  // arrives while k runs
    });
  } else {
    for_each_row<kRows>(p.out, row, col, [&](int r, const A* c) {
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load<A, P>(c + v * kWidth);
    });
  }
  // Strides in bytes, or g++ writes one more loop for a stride of one number.
  constexpr Index kSize = sizeof(A);
  const Index a_row = kSize * p.a.row_stride, a_step = in_register(kSize * p.a.col_stride);
  const Index b_step = kSize * p.b.stride;
  const A* left = p.a.data + row * p.a.row_stride;  // rows 0 to 3 at column k
  const A* below = in_register(plus_bytes(left, kRows > 4 ? 4 * a_row : 0));  // the others
  const A* right = p.b.data + col;                                            // row k
  const Product<A>* product = &p;
  on_stack(product), on_stack(row), on_stack(col);
  for (Index k = 0; k < depth; ++k) {
    if (k < next.count) next.fetch(k);
    P b[kVectors];
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) b[v] = load<A, P>(right + v * kWidth);
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const A* const a = r < 4 ? plus_bytes(left, r * a_row) : plus_bytes(below, (r - 4) * a_row);
      const P factor = Eigen::internal::pset1<P>(*a);
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(factor, b[v], sum[r][v]);
    }
    left = plus_bytes(left, a_step);
    below = plus_bytes(below, a_step);
    right = plus_bytes(right, b_step);
  }
  if (product->factors != nullptr) {
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const P factor = Eigen::internal::pset1<P>(product->factors[row + r]);
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Eigen::internal::pmul(sum[r][v], factor);
    }
  }
  for_each_row<kRows>(product->out, row, col, [&](int r, A* c) {
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) store(c + v * kWidth, sum[r][v]);
  });
}

/// Columns `cols` of one row of C (+)= columns `depth` of A times rows of B: as many packets at a
/// time as hide the latency of a multiply-add.
template <class A>
MHLA_NOINLINE void multiply_row(const Product<A>& p, Index row, ColumnSpan depth, ColumnSpan cols,
                                Start start) {
  using P = Packet<A>;
  using Half = typename Eigen::internal::unpacket_traits<P>::half;
  constexpr Index kWidth = kLanes<P>;
  if (p.next != nullptr) p.next->share(0);
  const A* const a = p.a.data + row * p.a.row_stride + depth.begin * p.a.col_stride;
  const A* const b = p.b.data + depth.begin * p.b.stride;
  A* const c = p.out.row(row);
  const A factor = p.factors == nullptr ? A(1) : p.factors[row];
  Index col = cols.begin;
  const auto columns = [&]<class Q, int kVectors>() {
    for (; col + kVectors * kLanes<Q> <= cols.end; col += kVectors * kLanes<Q>) {
      Q sum[kVectors];
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sum[v] = start == Start::kZero ? Eigen::internal::pset1<Q>(A(0))
                                       : load<A, Q>(c + col + v * kLanes<Q>);
      }
      const A *left = a, *right = b + col;
      for (Index k = depth.begin; k < depth.end; ++k) {
        const Q left_k = Eigen::internal::pset1<Q>(*left);
        MHLA_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          sum[v] = multiply_add(left_k, load<A, Q>(right + v * kLanes<Q>), sum[v]);
        }
        left += p.a.col_stride, right += p.b.stride;
      }
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        if (p.factors != nullptr) {
          sum[v] = Eigen::internal::pmul(sum[v], Eigen::internal::pset1<Q>(factor));
        }
        store(c + col + v * kLanes<Q>, sum[v]);
      }
    }
  };
  columns.template operator()<P, 8>();
  columns.template operator()<P, 4>();
  columns.template operator()<P, 1>();
  if constexpr (kWidth > 4 && kLanes<Half> < kWidth) columns.template operator()<Half, 1>();
  if constexpr (kWidth > 1) columns.template operator()<A, 1>();
}

/// The rows of a panel of kVectors packets at column `col`, in tiles of kRows rows as long as these
/// fit, then one by one.
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
  const ColumnSpan cols{col, col + kVectors * kLanes<P>};
  for (; row < p.a.rows; ++row) multiply_row(p, row, {0, p.a.cols}, cols, p.start);
}

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
    for (Index left; (left = (p.cols - col) / kWidth) > 4 || left == 3; col += kPanel<A>) {
      multiply_panel<P, kTile.vectors, kTile.rows, 2>(p, col);
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
  if (any.begin == any.end && start == Start::kTarget) return;
  if (rows == 1) return multiply_row(p, row, any, {0, p.cols}, start);
  const auto multiply_together = [&](ColumnSpan span, Start first) {
    Product<A> part = p;
    part.out = p.out.below(row);
    part.a = {p.a.data + row * p.a.row_stride + span.begin * p.a.col_stride, rows,
              span.end - span.begin, p.a.row_stride, p.a.col_stride};
    part.b = p.b.below(span.begin);
    part.start = first;
    multiply_dense(part);
  };
  const Index step = rows > kTile.rows ? kTile.rows : 1;
  const auto multiply_apart = [&](ColumnSpan span, Start first) {
    for (Index r = row; r < row + rows; r += step) {
      multiply_band(p, r, std::min(step, row + rows - r), span, first);
    }
  };
  if (any.begin == any.end) return multiply_together(any, start);
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
  Product<A> band = p;
  band.factors = nullptr;  // until all parts are added
  multiply_band(band, 0, p.a.rows, {0, p.a.cols}, p.start);
  for (Index r = 0; p.factors != nullptr && r < p.a.rows; ++r) {
    scale(p.factors[r], p.out.row(r), p.cols);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
