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
  /// Lines to prefetch, a share per tile, or null.
  Prefetch* next = nullptr;
  ColumnSpan within{};  ///< the columns of A to multiply, where it has spans; set by multiply()
};

template <class A>
MHLA_INLINE inline const A* plus_bytes(const A* p, Index bytes) {
  return reinterpret_cast<const A*>(reinterpret_cast<const char*>(p) + bytes);
}

/// Writes pointers to the rows of a tile whose first element is (row, col).
template <int kRows, class A>
MHLA_INLINE inline void tile_rows(const Rows<A>& c, Index row, Index col, A* (&rows)[kRows]) {
  if (c.order == nullptr) {
    A* first = c.data + row * c.stride + col;
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r, first += c.stride) rows[r] = first, on_stack(rows[r]);
  } else {
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) rows[r] = c.row(row + r) + col, on_stack(rows[r]);
  }
}

/// Union and intersection of the spans of some rows of A.
struct TileSpans {
  ColumnSpan any{}, all{};

  TileSpans() = default;
  /// Without a common column, `all` is empty at the end of `any`.
  TileSpans(const ColumnSpan* spans, int rows, ColumnSpan within)
      : any{within.end, within.begin}, all(within) {
    for (int r = 0; r < rows; ++r) {
      const ColumnSpan span = ColumnSpan::both(within, spans[r]);
      all = ColumnSpan::both(all, span);
      if (span.begin < span.end) any = ColumnSpan::either(any, span);
    }
    if (any.begin > any.end) any = {within.begin, within.begin};
    if (all.begin >= all.end) all = {any.end, any.end};
  }
};

/// Unroll factor of the k loop. Where two threads share the front end of a core, instructions and
/// their cache lines limit a tile. Unrolling saves 2 to 9 % of a whole call with AVX2. Where sums
/// move between registers, g++ would spill them if unrolled.
inline constexpr Index kSteps = kAddsProducts ? 4 : 1;

/// Keeps x, a counter or pointer of the unrolled loop, in a register. Otherwise g++ computes its
/// values of several steps ahead.
template <class X>
MHLA_INLINE inline X moved(X x) {
  return kSteps > 1 ? in_register(x) : x;
}

/// Positions of a tile in column k of A and row k of B. Strides are in bytes: for a stride of one
/// number g++ would write another loop. The loop has few integers, since g++ spills more to vector
/// registers, where they wait for the multiply-adds.
template <class A>
struct TileOperands {
  const A* left;                        ///< row 0 of A at column k
  const A* below;                       ///< row 4
  const A* right;                       ///< row k of B
  Index a_row, a_row3, a_step, b_step;  ///< of A: a row, 3 rows, a column; of B: a row

  TileOperands(const Product<A>& p, Index row)
      : left(p.a.data + row * p.a.row_stride),
        a_row(kSize * p.a.row_stride),
        a_row3(in_register(3 * a_row)),
        a_step(in_register(kSize * p.a.col_stride)),
        b_step(kSize * p.b.stride) {}

  /// Element of column k in row r.
  MHLA_INLINE const A* factor(int r) const {
    return plus_bytes(r < 4 ? left : below, r % 4 == 3 ? a_row3 : r % 4 * a_row);
  }
  template <int kRows>
  MHLA_INLINE void advance() {
    left = moved(plus_bytes(left, a_step));
    if constexpr (kRows > 4) below = moved(plus_bytes(below, a_step));
    right = moved(plus_bytes(right, b_step));
  }

 private:
  static constexpr Index kSize = sizeof(A);
};

/// Multiplies columns [k, end) of A, which only some rows of a tile have, by rows of B.
template <class P, int kRows, int kVectors, class A>
MHLA_INLINE inline void multiply_some(const ColumnSpan* spans, Index k, Index end,
                                      TileOperands<A>& at, P (&sum)[kRows][kVectors]) {
  for (; k < end; ++k) {
    P b[kVectors];
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) b[v] = load<A, P>(at.right + v * kLanes<P>);
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (k < spans[r].begin || k >= spans[r].end) continue;
      const P factor = Eigen::internal::pset1<P>(*at.factor(r));
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(factor, b[v], sum[r][v]);
    }
    at.template advance<kRows>();
  }
}

/// Multiplies column k of A, which all rows of a tile have, by row k of B.
template <class P, int kRows, int kVectors, class A>
MHLA_INLINE inline void multiply_step(TileOperands<A>& at, P (&sum)[kRows][kVectors]) {
  // Keeps g++ from duplicating the loop with another move between registers.
  if constexpr (kRows * kVectors > 16) side_effect();
  P b[kVectors];
  MHLA_UNROLL
  for (int v = 0; v < kVectors; ++v) b[v] = load<A, P>(at.right + v * kLanes<P>);
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const P factor = Eigen::internal::pset1<P>(*at.factor(r));
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) accumulate<A>(factor, b[v], sum[r][v]);
    if constexpr (kRows * kVectors > 16) read_after(at.left, sum[r][0]);
  }
  at.template advance<kRows>();
}

/// The micro-kernel: computes tiles of kRows rows and kVectors packets whose first column is `col`.
/// Starts at row `row` and goes down while whole tiles fit.
/// \tparam kSpans  A has spans: columns that all rows of a tile have are multiplied together, other
///     columns row by row into the same registers
/// \return the first row that is left
template <class P, int kRows, int kVectors, bool kSpans, class A>
MHLA_NOINLINE Index multiply_tiles(const Product<A>& p, Index row, Index col) {
  constexpr Index kWidth = kLanes<P>;
  Index depth = p.a.cols;
  TileOperands<A> at(p, row);
  const A* first = at.left;  // first element of the tile
  for (; p.a.rows - row >= kRows; row += kRows) {
    if (kRows == 6 && p.a.rows - row == 8) break;  // two tiles of 4
    TileSpans spans;
    if constexpr (kSpans) {
      spans = TileSpans(p.spans + row, kRows, p.within);
      depth = spans.all.end - spans.all.begin;
    }
    const Index turns = depth / kSteps;
    const Prefetch::Pieces next = p.next == nullptr ? Prefetch::Pieces{} : p.next->share(turns);
    A* rows[kRows];  // of C
    tile_rows(p.out, row, col, rows);
    P sum[kRows][kVectors];
    if (p.start == Start::kZero) {
      MHLA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        MHLA_UNROLL
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Eigen::internal::pset1<P>(A(0));
        prefetch_l1(rows[r]);  // arrives while k runs
      }
    } else {
      MHLA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        MHLA_UNROLL
        for (int v = 0; v < kVectors; ++v) sum[r][v] = load<A, P>(rows[r] + v * kWidth);
      }
    }
    at.left = first;
    at.right = p.b.data + col;
    if constexpr (kSpans) {
      at.left = plus_bytes(at.left, spans.any.begin * at.a_step);
      at.right += spans.any.begin * p.b.stride;
    }
    at.below = in_register(plus_bytes(at.left, kRows > 4 ? 4 * at.a_row : 0));
    first = plus_bytes(first, kRows * at.a_row);
    const Product<A>* product = &p;
    on_stack(product), on_stack(row), on_stack(col), on_stack(first);
    if constexpr (kSpans) {
      multiply_some(product->spans + row, spans.any.begin, spans.all.begin, at, sum);
    }
    const auto turn = [&]() MHLA_INLINE {
      multiply_step(at, sum);
      if constexpr (kSteps == 1) return;
      multiply_step(at, sum), multiply_step(at, sum), multiply_step(at, sum);
    };
    for (Index i = 0; i < next.count; ++i) next.fetch(i), turn();
    Index rest = turns - next.count;
    if (rest > 0) [[likely]] {
      begin_line(rest);
      do turn();
      while ((rest = moved(rest - 1)) > 0);
    }
    for (rest = depth % kSteps; rest > 0; rest = moved(rest - 1)) multiply_step(at, sum);
    if constexpr (kSpans) {
      multiply_some(product->spans + row, spans.all.end, spans.any.end, at, sum);
    }
    if (product->factors != nullptr) {
      MHLA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const P factor = Eigen::internal::pset1<P>(product->factors[row + r]);
        MHLA_UNROLL
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Eigen::internal::pmul(sum[r][v], factor);
      }
    }
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      A* const c = rows[r];
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) store(c + v * kWidth, sum[r][v]);
    }
  }
  return row;
}

/// Columns `cols` of one row of C (+)= columns `depth` of A times rows of B. It takes enough
/// packets at a time to hide the latency of a multiply-add.
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
