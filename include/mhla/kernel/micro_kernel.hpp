#pragma once

/// \file
/// The micro-kernels of the product C (+)= A B (product.hpp): a tile of C that stays in registers
/// while k runs, and a single row.

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
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
  ColumnSpan within{};  ///< the columns of A to multiply, where it has spans; set by multiply()
};

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

/// The columns that any and that all of some rows of A have.
struct TileSpans {
  ColumnSpan any{}, all{};

  TileSpans() = default;
  /// `all` is empty at the end of `any` where the rows have no column in common.
  TileSpans(const ColumnSpan* spans, int rows, ColumnSpan within)
      : any{within.end, within.begin}, all(within) {
    for (int r = 0; r < rows; ++r) {
      const ColumnSpan own = ColumnSpan::both(within, spans[r]);
      all = ColumnSpan::both(all, own);
      if (own.begin < own.end) any = ColumnSpan::either(any, own);
    }
    if (any.begin > any.end) any = {within.begin, within.begin};
    if (all.begin >= all.end) all = {any.end, any.end};
  }
};

/// Columns [k, end) of A, which only some rows of a tile have, times rows of B. Strides and steps
/// are bytes, pointers those of multiply_tiles.
template <class P, int kRows, int kVectors, class A>
MHLA_INLINE inline void multiply_some(const ColumnSpan* spans, Index k, Index end, Index a_row,
                                      Index a_step, Index b_step, const A*& left, const A*& below,
                                      const A*& right, P (&sum)[kRows][kVectors]) {
  for (; k < end; ++k) {
    P b[kVectors];
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) b[v] = load<A, P>(right + v * kLanes<P>);
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (k < spans[r].begin || k >= spans[r].end) continue;
      const A* const a = r < 4 ? plus_bytes(left, r * a_row) : plus_bytes(below, (r - 4) * a_row);
      const P factor = Eigen::internal::pset1<P>(*a);
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(factor, b[v], sum[r][v]);
    }
    left = plus_bytes(left, a_step);
    below = plus_bytes(below, a_step);
    right = plus_bytes(right, b_step);
  }
}

/// The micro-kernel: tiles of kRows rows and kVectors packets, from row `row` down as many as fit,
/// whose first column is `col`. Few integers live in its loop: g++ spills the others to vector
/// registers, where they queue behind the multiply-adds.
/// \tparam kSpans  A has spans: beside the columns that all rows of a tile have, each row takes its
///                 own into the same registers
/// \return the first row that is left
template <class P, int kRows, int kVectors, bool kSpans, class A>
MHLA_NOINLINE Index multiply_tiles(const Product<A>& p, Index row, Index col) {
  constexpr Index kWidth = kLanes<P>;
  Index depth = p.a.cols;
  // Strides in bytes, or g++ writes one more loop for a stride of one number.
  constexpr Index kSize = sizeof(A);
  const Index a_row = kSize * p.a.row_stride, a_step = in_register(kSize * p.a.col_stride);
  const Index b_step = kSize * p.b.stride;
  const A* first = p.a.data + row * p.a.row_stride;  // of the tile
  for (; p.a.rows - row >= kRows; row += kRows) {
    if (kRows == 6 && p.a.rows - row == 8) break;  // two tiles of 4
    TileSpans spans;
    if constexpr (kSpans) {
      spans = TileSpans(p.spans + row, kRows, p.within);
      depth = spans.all.end - spans.all.begin;
    }
    const Prefetch::Lines next = p.next == nullptr ? Prefetch::Lines{} : p.next->share(depth);
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
    const A* left = first;  // rows 0 to 3 at column k
    if constexpr (kSpans) left = plus_bytes(left, spans.any.begin * a_step);
    const A* below = in_register(plus_bytes(left, kRows > 4 ? 4 * a_row : 0));  // the others
    first = plus_bytes(first, kRows * a_row);
    const A* right = p.b.data + col;  // row k
    if constexpr (kSpans) right += spans.any.begin * p.b.stride;
    const Product<A>* product = &p;
    on_stack(product), on_stack(row), on_stack(col), on_stack(first);
    if constexpr (kSpans) {
      multiply_some(product->spans + row, spans.any.begin, spans.all.begin, a_row, a_step, b_step,
                    left, below, right, sum);
    }
    for (Index k = 0; k < depth; ++k) {
      if (k < next.count) next.fetch(k);
      // Or g++ writes the loop once more, with another move between registers.
      if constexpr (kRows * kVectors > 16) side_effect();
      P b[kVectors];
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) b[v] = load<A, P>(right + v * kWidth);
      MHLA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const A* const a = r < 4 ? plus_bytes(left, r * a_row) : plus_bytes(below, (r - 4) * a_row);
        const P factor = Eigen::internal::pset1<P>(*a);
        MHLA_UNROLL
        for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(factor, b[v], sum[r][v]);
        if constexpr (kRows * kVectors > 16) read_after(left, sum[r][0]);
      }
      left = plus_bytes(left, a_step);
      below = plus_bytes(below, a_step);
      right = plus_bytes(right, b_step);
    }
    if constexpr (kSpans) {
      multiply_some(product->spans + row, spans.all.end, spans.any.end, a_row, a_step, b_step, left,
                    below, right, sum);
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
  return row;
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
  columns.template operator()<P, kTile.vectors>();
  columns.template operator()<P, 1>();
  if constexpr (kWidth > 4 && kLanes<Half> < kWidth) columns.template operator()<Half, 1>();
  if constexpr (kWidth > 1) columns.template operator()<A, 1>();
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
