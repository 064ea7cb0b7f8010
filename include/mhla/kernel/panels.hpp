#pragma once

/// \file
/// The right operand of many products, packed: C (+)= A B with B [depth,cols] in panels of the
/// columns that a product computes at a time. The rows of a panel lie side by side, so products
/// read B from one end to the other, where rows of a matrix are pages apart. Bits are those of the
/// product with B as it was.

#include <algorithm>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
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

 public:
  Panels(Index depth, Index cols, T* data) : depth_(depth), cols_(cols), data_(data) {}
  Panels(const char* function, Arena& arena, Index depth, Index cols)
      : Panels(depth, cols, arena.take<A>(function, {depth, round_up(cols, kWidth)})) {}

  /// Copies B [depth,cols].
  void pack(MatrixView<const A> b) const {
    for_each([&](Index begin, Index count, A* panel, Index stride) {
      for (Index k = 0; k < depth_; ++k) std::copy_n(b.row(k) + begin, count, panel + k * stride);
    });
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
  T* data() const { return data_; }

 private:
  /// f(first column, columns, the panel, its row stride).
  template <class F>
  void for_each(const F& f) const {
    for (Index begin = 0; begin < cols_; begin += kPanel<A>) {
      const Index count = std::min(kPanel<A>, cols_ - begin);
      f(begin, count, data_ + begin * depth_, round_up(count, kWidth));
    }
  }

  Index depth_, cols_;
  T* data_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END
