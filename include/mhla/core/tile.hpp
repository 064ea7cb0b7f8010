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

/// Element (r, k) of A is data[r * row_stride + k * depth_stride]; one of the strides is 1.
template <class A>
struct LeftOperand {
  const A* data;
  Index row_stride;
  Index depth_stride;
};

/// A left operand with its unit stride known when the tile is compiled.
template <class A>
struct LeftRows {
  const A* data;
  Index row_stride;
  static constexpr Index depth_stride = 1;
};
template <class A>
struct LeftColumns {
  const A* data;
  Index depth_stride;
  static constexpr Index row_stride = 1;
};

/// Row k of B starts at data + k * depth_stride.
template <class A>
struct RightOperand {
  const A* data;
  Index depth_stride;
};

/// Row r of C starts at data + r * row_stride.
template <class A>
struct Target {
  A* data;
  Index row_stride;
};

/// What a product starts from.
enum class Start { kZero, kTarget };

/// Rows of a full tile: with two vectors a row, half of the registers accumulate.
inline constexpr int kTileRows = kVectorRegisters / 4;
inline constexpr int kTileVectors = 2;

/// One tile of kRows rows and kVectors packets.
template <class P, int kRows, int kVectors, class A, class Left>
inline void multiply_tile(Start start, Target<A> c, Left a, RightOperand<A> b, Index depth) {
  constexpr Index kWidth = kLanes<P>;
  P sum[kRows][kVectors];
  if (start == Start::kTarget) {
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = load<A, P>(c.data + r * c.row_stride + v * kWidth);
      }
    }
  } else {
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Eigen::internal::pset1<P>(A(0));
    }
  }
  // The rows of C arrive while k runs, so that storing them does not wait.
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Eigen::internal::prefetch(c.data + r * c.row_stride + v * kWidth);
    }
  }
  const A* left = a.data;
  const A* right = b.data;
  for (Index k = 0; k < depth; ++k, left += a.depth_stride, right += b.depth_stride) {
    P row[kVectors];
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) row[v] = load<A, P>(right + v * kWidth);
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const P factor = Eigen::internal::pset1<P>(left[r * a.row_stride]);
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = multiply_add(factor, row[v], sum[r][v]);
      }
    }
  }
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      store(c.data + r * c.row_stride + v * kWidth, sum[r][v]);
    }
  }
}

/// All rows of one column panel of kVectors packets; short row counts by halving the tile.
template <class P, int kVectors, int kRows = kTileRows, class A, class Left>
inline void multiply_panel(Start start, Target<A> c, Left a, RightOperand<A> b, Index rows,
                           Index depth) {
  while (rows >= kRows) {
    multiply_tile<P, kRows, kVectors>(start, c, a, b, depth);
    c.data += kRows * c.row_stride;
    a.data += kRows * a.row_stride;
    rows -= kRows;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) multiply_panel<P, kVectors, kRows / 2>(start, c, a, b, rows, depth);
  }
}

/// The columns that are left, in packets of type P or narrower.
template <class P, class A, class Left>
inline void multiply_narrow(Start start, Target<A> c, Left a, RightOperand<A> b, Index rows,
                            Index cols, Index depth) {
  for (; cols >= kLanes<P>; cols -= kLanes<P>) {
    multiply_panel<P, 1>(start, c, a, b, rows, depth);
    c.data += kLanes<P>;
    b.data += kLanes<P>;
  }
  if constexpr (kLanes < P >> 1) {
    using Half = typename Eigen::internal::unpacket_traits<P>::half;
    using Narrower = std::conditional_t<std::is_same_v<Half, P>, A, Half>;
    if (cols > 0) multiply_narrow<Narrower>(start, c, a, b, rows, cols, depth);
  }
}

/// All columns, the widest panels first.
template <class A, class Left>
void multiply_all(Start start, Target<A> c, Left a, RightOperand<A> b, Index rows, Index cols,
                  Index depth) {
  using P = Packet<A>;
  constexpr Index kPanel = kTileVectors * kLanes<P>;
  for (; cols >= kPanel; cols -= kPanel) {
    multiply_panel<P, kTileVectors>(start, c, a, b, rows, depth);
    c.data += kPanel;
    b.data += kPanel;
  }
  if (cols > 0) multiply_narrow<P>(start, c, a, b, rows, cols, depth);
}

/// C (+)= A B.
template <class A>
void multiply(Start start, Target<A> c, LeftOperand<A> a, RightOperand<A> b, Index rows, Index cols,
              Index depth) {
  eigen_assert(a.row_stride == 1 || a.depth_stride == 1);
  if (a.depth_stride == 1) {
    multiply_all(start, c, LeftRows<A>{a.data, a.row_stride}, b, rows, cols, depth);
  } else {
    multiply_all(start, c, LeftColumns<A>{a.data, a.depth_stride}, b, rows, cols, depth);
  }
}

}  // namespace mhla::inline MHLA_TARGET::detail

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
