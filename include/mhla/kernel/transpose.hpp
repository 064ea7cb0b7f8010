#pragma once

/// \file
/// Transposition of rows, whole squares of packets at a time in registers.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/packet.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Writes y[c, r] = factor * x[r, c] for r < rows, c < cols. It also writes columns of y from
/// `rows` up to the next multiple of a packet's length, from the rows of x there. Both x and y need
/// that memory.
template <class A>
MHLA_NOINLINE void transpose_scaled(A factor, const A* x, Index x_stride, Index rows, Index cols,
                                    A* y, Index y_stride) {
  using P = Packet<A>;
  constexpr int kWidth = static_cast<int>(kLanes<P>);
  const P f = Eigen::internal::pset1<P>(factor);
  const Index whole = cols / kWidth * kWidth;  // columns in whole squares
  for (Index r = 0; r < rows; r += kWidth) {
    for (Index c = 0; c < whole; c += kWidth) {
      Eigen::internal::PacketBlock<P, kWidth> square;
      MHLA_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        square.packet[i] = Eigen::internal::pmul(f, load<A, P>(x + (r + i) * x_stride + c));
      }
      Eigen::internal::ptranspose(square);
      MHLA_UNROLL
      for (int i = 0; i < kWidth; ++i) store(y + (c + i) * y_stride + r, square.packet[i]);
    }
    for (Index c = whole; c < cols; ++c) {
      for (Index i = r; i < r + kWidth; ++i) y[c * y_stride + i] = factor * x[i * x_stride + c];
    }
  }
}

/// Writes y[c, r] = x[r, c] of x [rows,cols]. Accesses no other memory.
template <class A>
void transpose(MatrixView<const A> x, A* y, Index y_stride) {
  constexpr Index kWidth = kLanes<Packet<A>>;
  const Index whole = x.rows / kWidth * kWidth;
  transpose_scaled(A(1), x.data, x.row_stride, whole, x.cols, y, y_stride);
  for (Index r = whole; r < x.rows; ++r) {
    for (Index c = 0; c < x.cols; ++c) y[c * y_stride + r] = x(r, c);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
