#pragma once

/// \file
/// The row view that products read and write through. Row r starts at data + r * stride, or at data
/// + order[r] * stride for tokens of a tensor in any order. Columns are contiguous.

#include <concepts>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Rows of scratch are padded to a multiple of this many elements.
inline constexpr Index kRowAlignment = 16;

template <class A>
struct Rows {
  A* data = nullptr;
  Index stride = 0;
  const Index* order = nullptr;

  constexpr Rows() = default;
  constexpr Rows(A* data_, Index stride_, const Index* order_ = nullptr)
      : data(data_), stride(stride_), order(order_) {}
  /// Scratch [rows, cols]. Rows start at cache lines and do not alias in a cache.
  Rows(const char* function, Arena& arena, Index rows, Index cols)
      : stride(unaliased_stride<A>(round_up(cols, kRowAlignment))) {
    data = arena.take<A>(function, {rows, stride});
  }
  template <std::same_as<const A> C>
  requires(!std::is_const_v<A>) constexpr operator Rows<C>() const {  // NOLINT
    return {data, stride, order};
  }

  A* row(Index r) const { return data + (order == nullptr ? r : order[r]) * stride; }
  /// The rows from `rows` on.
  Rows below(Index rows) const {
    return order == nullptr ? Rows(data + rows * stride, stride) : Rows(data, stride, order + rows);
  }
  /// The columns from `cols` on.
  Rows right_of(Index cols) const { return {data + cols, stride, order}; }
  /// The first rows and columns as a matrix, for rows without an order.
  MatrixView<A> matrix(Index rows, Index cols) const { return {data, rows, cols, stride}; }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
