#pragma once

/// \file
/// The register-tiled product every stage uses:
///
///     C[r, :] (+)= sum_k A[r, k] B[k, :]        C [rows,cols], A [rows,depth], B [depth,cols]
///
/// A tile of R rows by V vectors of C stays in registers while k runs; elements of A are broadcast,
/// rows of B are loaded. Columns of B and C are contiguous, and rows or columns of A; everything
/// else has strides.
///
/// Law: every element of C is one chain of multiply-adds over k in ascending order, started from 0
/// or from C. So its bits do not depend on where in a tile it lies, on alignment, or on how a long
/// depth is cut into calls; stages build the library's bitwise promises on this.
///
/// Cost: 2 * rows * cols * depth flops; per step of a full tile R broadcasts and V loads.

#include <algorithm>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/packet.hpp"
#include "mhla/core/scalar.hpp"

// A packet as a template argument loses its alignment attribute; nothing here depends on it.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"
#endif

namespace mhla::inline MHLA_TARGET::detail {

/// Row r of A starts at data + r * row_stride.
template <class A>
struct LeftRows {
  const A* data;
  Index row_stride;
  static constexpr Index depth_stride = 1;

  LeftRows below(Index rows) const { return {data + rows * row_stride, row_stride}; }
};

/// Column k of A starts at data + k * depth_stride.
template <class A>
struct LeftColumns {
  const A* data;
  Index depth_stride;
  static constexpr Index row_stride = 1;

  LeftColumns below(Index rows) const { return {data + rows, depth_stride}; }
};

/// Columns [begin, end) of a row.
struct ColumnSpan {
  Index begin, end;
};

/// Row r of A starts at data + r * row_stride and has the columns spans[r] of the depth only; what
/// lies beside them meets no row of B.
template <class A>
struct LeftBand {
  const A* data;
  Index row_stride;
  const ColumnSpan* spans;
  static constexpr Index depth_stride = 1;

  LeftBand below(Index rows) const { return {data + rows * row_stride, row_stride, spans + rows}; }

  /// The columns that all of `rows` rows have, and those that any of them has.
  ColumnSpan common(int rows) const {
    ColumnSpan s = spans[0];
    for (int r = 1; r < rows; ++r) {
      s = {std::max(s.begin, spans[r].begin), std::min(s.end, spans[r].end)};
    }
    return s;
  }
  ColumnSpan any(int rows) const {
    ColumnSpan s = spans[0];
    for (int r = 1; r < rows; ++r) {
      s = {std::min(s.begin, spans[r].begin), std::max(s.end, spans[r].end)};
    }
    return s;
  }
};

/// Row k of B starts at data + k * depth_stride.
///
/// A right operand is any type with these members: where row k starts, what lies to the right, and
/// what else is done when the vector `col` columns into row k has been loaded.
template <class A>
struct RightOperand {
  const A* data;
  Index depth_stride;

  const A* row(Index k) const { return data + k * depth_stride; }
  RightOperand right_of(Index cols) const { return {data + cols, depth_stride}; }
  template <class P>
  MHLA_INLINE void loaded(Index /*k*/, Index /*col*/, P /*vector*/) const {}
};

/// Row r of C starts at data + r * row_stride.
///
/// A target is any type with these members: where row r starts, what lies below and to the right,
/// and what is stored in row r for a vector of its sums.
template <class A>
struct Target {
  A* data;
  Index row_stride;

  A* row(Index r) const { return data + r * computed_anew(row_stride); }
  Target below(Index rows) const { return {data + rows * row_stride, row_stride}; }
  Target right_of(Index cols) const { return {data + cols, row_stride}; }
  template <class P>
  MHLA_INLINE P finished(Index /*r*/, P sums) const {
    return sums;
  }
};

/// What a product starts from.
enum class Start { kZero, kTarget };

/// Rows of a full tile: with two vectors a row, half of the registers accumulate.
inline constexpr int kTileRows = kVectorRegisters / 4;
inline constexpr int kTileVectors = 2;

/// Panels of columns that a product is made of; the columns of the last one may be done in pieces.
template <class A>
constexpr Index panels(Index cols) {
  constexpr Index kPanel = kTileVectors * kLanes<Packet<A>>;
  return (cols + kPanel - 1) / kPanel;
}

/// sum[r] += A[r, k] B[k], for all rows or for those that have column k; `left` is at column k.
template <bool kAllRows, class P, int kRows, int kVectors, class A, class Left, class Right>
MHLA_INLINE inline void add_step(P (&sum)[kRows][kVectors], const A* left, const Left& a,
                                 const Right& b, Index k) {
  constexpr Index kWidth = kLanes<P>;
  const A* const right = b.row(k);
  P row[kVectors];
  MHLA_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    row[v] = load<A, P>(right + v * kWidth);
    b.loaded(k, v * kWidth, row[v]);
  }
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    if constexpr (!kAllRows) {
      if (k < a.spans[r].begin || k >= a.spans[r].end) continue;
    }
    const P factor = Eigen::internal::pset1<P>(left[r * a.row_stride]);
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(factor, row[v], sum[r][v]);
  }
}

/// One tile of kRows rows and kVectors packets.
template <class P, int kRows, int kVectors, class To, class Left, class Right>
inline void multiply_tile(Start start, To c, Left a, Right b, Index depth) {
  using A = typename Eigen::internal::unpacket_traits<P>::type;
  constexpr Index kWidth = kLanes<P>;
  P sum[kRows][kVectors];
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    A* const row = c.row(r);
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      if (start == Start::kTarget) {
        sum[r][v] = load<A, P>(row + v * kWidth);
      } else {
        sum[r][v] = Eigen::internal::pset1<P>(A(0));
        Eigen::internal::prefetch(row + v * kWidth);  // arrives while k runs
      }
    }
  }
  const A* left = a.data;  // at column k
  Index k = 0;
  if constexpr (requires { a.spans; }) {
    const ColumnSpan any = a.any(kRows), common = a.common(kRows);
    const Index begin = std::clamp(common.begin, any.begin, std::max(any.begin, any.end));
    depth = common.end;
    left += any.begin;
    for (k = any.begin; k < begin; ++k, ++left) add_step<false, P>(sum, left, a, b, k);
  }
  for (; k < depth; ++k, left += a.depth_stride) add_step<true, P>(sum, left, a, b, k);
  if constexpr (requires { a.spans; }) {
    const Index end = a.any(kRows).end;
    for (; k < end; ++k, ++left) add_step<false, P>(sum, left, a, b, k);
  }
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    A* const row = c.row(r);
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) store(row + v * kWidth, c.finished(r, sum[r][v]));
  }
}

/// All rows of one column panel of kVectors packets; short row counts by halving the tile.
template <class P, int kVectors, int kRows = kTileRows, class To, class Left, class Right>
inline void multiply_panel(Start start, To c, Left a, Right b, Index rows, Index depth) {
  while (rows >= kRows) {
    multiply_tile<P, kRows, kVectors>(start, c, a, b, depth);
    c = c.below(kRows);
    a = a.below(kRows);
    rows -= kRows;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) multiply_panel<P, kVectors, kRows / 2>(start, c, a, b, rows, depth);
  }
}

/// The columns that are left, in packets of type P or narrower.
template <class P, class To, class Left, class Right>
inline void multiply_narrow(Start start, To c, Left a, Right b, Index rows, Index cols,
                            Index depth) {
  for (; cols >= kLanes<P>; cols -= kLanes<P>) {
    multiply_panel<P, 1>(start, c, a, b, rows, depth);
    c = c.right_of(kLanes<P>);
    b = b.right_of(kLanes<P>);
  }
  if constexpr (kLanes < P >> 1) {
    using A = typename Eigen::internal::unpacket_traits<P>::type;
    using Half = typename Eigen::internal::unpacket_traits<P>::half;
    using Narrower = std::conditional_t<std::is_same_v<Half, P>, A, Half>;
    if (cols > 0) multiply_narrow<Narrower>(start, c, a, b, rows, cols, depth);
  }
}

/// C (+)= A B, the widest panels of columns first. Left is LeftRows, LeftColumns or LeftBand.
template <class A, class To, template <class> class Left, class Right>
void multiply(Start start, To c, Left<A> a, Right b, Index rows, Index cols, Index depth) {
  using P = Packet<A>;
  constexpr Index kPanel = kTileVectors * kLanes<P>;
  if (rows == 1) {  // as many chains as a full tile has
    constexpr Index kWide = kTileRows * kLanes<P>;
    for (; cols >= kWide; cols -= kWide) {
      multiply_tile<P, 1, kTileRows>(start, c, a, b, depth);
      c = c.right_of(kWide);
      b = b.right_of(kWide);
    }
  }
  for (; cols >= kPanel; cols -= kPanel) {
    multiply_panel<P, kTileVectors>(start, c, a, b, rows, depth);
    c = c.right_of(kPanel);
    b = b.right_of(kPanel);
  }
  if (cols > 0) multiply_narrow<P>(start, c, a, b, rows, cols, depth);
}

}  // namespace mhla::inline MHLA_TARGET::detail

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
