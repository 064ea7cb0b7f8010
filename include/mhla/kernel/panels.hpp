#pragma once

/// \file
/// Packed right operand of many products C (+)= A B. B [depth,cols] is stored in panels of the
/// columns that a product computes at a time. Rows of a panel are contiguous, so products read B
/// from start to end; rows of a matrix are pages apart. Bits are those of the product with the
/// unpacked B.

#include <algorithm>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/transpose.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <class T>  // A or const A
class Panels {
  using A = std::remove_const_t<T>;
  static constexpr Index kWidth = kLanes<Packet<A>>;
  static constexpr Index kAhead = 4;  // rows to prefetch ahead

 public:
  Panels(Index depth, Index cols, T* data) : depth_(depth), cols_(cols), data_(data) {}
  Panels(const char* function, Arena& arena, Index depth, Index cols)
      : Panels(depth, cols, arena.take<A>(function, {depth, padded(cols)})) {}
  /// Stored numbers per row of B, padding included.
  static Index padded(Index cols) { return round_up(cols, kWidth); }

  Index count() const { return ceil_div(cols_, kPanel<A>); }
  /// First column of panel `panel`, or all columns for count().
  Index first_column(Index panel) const { return std::min(panel * kPanel<A>, cols_); }
  /// Panels [begin, end).
  Panels middle(Index begin, Index end) const {
    return {depth_, first_column(end) - first_column(begin), data_ + first_column(begin) * depth_};
  }

  /// Copies B [depth,cols].
  void pack(MatrixView<const A> b) const { pack_rows(b, 0, depth_); }
  /// Copies rows [begin, end) of B. Hardware prefetches contiguous rows. For other rows,
  /// prefetching here makes the copy take 0.6 to 0.8 times as long.
  void pack_rows(MatrixView<const A> b, Index begin, Index end) const {
    const bool apart = b.row_stride != cols_;
    for (Index k = begin; k < end; ++k) {
      if (apart && k + kAhead < end) prefetch_row(b.row(k + kAhead), cols_);
      for_each([&](Index col, Index count, A* panel, Index stride) {
        copy_row(b.row(k) + col, count, panel + k * stride);
      });
    }
  }
  /// Copies B from its transpose [cols,depth].
  void pack_transposed(MatrixView<const A> b) const {
    for_each([&](Index begin, Index count, A* panel, Index stride) {
      transpose(b.middle_rows(begin, count), panel, stride);
    });
  }
  /// C (+)= A B.
  void multiply(Start start, MatrixView<const A> a, MatrixView<A> c) const {
    for_each([&](Index begin, Index count, const A* panel, Index stride) {
      detail::multiply<A>({.out = {c.data + begin, c.row_stride},
                           .a = a,
                           .b = {panel, stride},
                           .cols = count,
                           .start = start});
    });
  }
  /// Copies the panels to a matrix B [depth,cols].
  void unpack(MatrixView<A> b) const {
    for (Index k = 0; k < depth_; ++k) {
      for_each([&](Index begin, Index count, const A* panel, Index stride) {
        copy_row(panel + k * stride, count, b.row(k) + begin);
      });
    }
  }
  /// B += X^T Y, where X [rows,depth] and Y [rows,cols] are panels too.
  void add_product(const Panels& x, const Panels& y) const {
    for_each([&](Index col, Index cols, A* to, Index stride) {
      x.for_each([&](Index row, Index rows, const A* left, Index left_stride) {
        detail::multiply<A>({.out = {to + row * stride, stride},
                             .a = {left, rows, x.depth_, 1, left_stride},
                             .b = {y.data_ + col * y.depth_, stride},
                             .cols = cols,
                             .start = Start::kTarget});
      });
    });
  }
  T* data() const { return data_; }

 private:
  static void copy_row(const A* from, Index count, A* to) {
    Index c = 0;
    for (; c + kWidth <= count; c += kWidth) store(to + c, load<A, Packet<A>>(from + c));
    std::copy_n(from + c, count - c, to + c);
  }
  /// Calls f(first column, columns, panel, row stride of the panel).
  template <class F>
  void for_each(const F& f) const {
    for (Index begin = 0; begin < cols_; begin += kPanel<A>) {
      const Index count = std::min(kPanel<A>, cols_ - begin);
      f(begin, count, data_ + begin * depth_, padded(count));
    }
  }

  Index depth_, cols_;
  T* data_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
