#pragma once

/// \file
/// Helpers of all layers: pieces of rows, and checks of views.
///
/// Outputs are split into strips of rows. Sums over all rows, such as gradients of parameters, are
/// split into chunks. The number of chunks depends only on the sizes, and their sums are added in
/// order. So every result is bitwise the same for any executor.

#include <algorithm>
#include <string>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/overlap.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

/// The element type of a view or an Eigen object.
template <class M>
struct Element {};
template <class T>
struct Element<MatrixView<T>> {
  using type = std::remove_const_t<T>;
};
template <EigenDense M>
struct Element<M> {
  using type = typename M::Scalar;
};
template <class M>
using element_t = typename Element<M>::type;

/// Type of a layer's other arguments if the first is an M: views, to which Eigen objects convert.
template <class M>
using input_t = MatrixView<const element_t<M>>;
template <class M>
using output_t = MatrixView<element_t<M>>;

}  // namespace detail

/// The input of a layer: a view or an Eigen object of float or double, with contiguous rows.
template <class M>
concept LayerInput = Accumulator<detail::element_t<M>>;

namespace detail {

/// Rows of a strip. With a few hundred columns they stay in L2.
inline constexpr Index kLayerStrip = 64;

/// Runs f(begin, count) for strips of [0, rows).
template <class F>
void for_each_layer_strip(Index rows, const ExecutorRef& executor, F&& f) {
  const Index strips = ceil_div(rows, kLayerStrip);
  executor.for_each(strips, [&](Index strip, Index /*worker*/) {
    const Index begin = strip * kLayerStrip;
    f(begin, std::min(kLayerStrip, rows - begin));
  });
}

/// True if there are fewer strips than workers.
inline bool fewer_strips_than_workers(Index rows, const ExecutorRef& executor) {
  return ceil_div(rows, kLayerStrip) < executor.workers();
}

/// Returns the pieces of work for the workers of an executor, at most `most`. A piece has enough
/// multiply-adds or copied numbers for a few microseconds.
inline Index pieces_of_work(const ExecutorRef& executor, Index work, Index most) {
  return std::max<Index>(1, std::min({executor.workers(), most, work >> 16}));
}

/// Splits rows [0, rows) into at most `most` chunks of whole strips, each of `least` rows or more.
struct RowChunks {
  Index rows;
  Index chunk_rows;

  RowChunks(Index rows_, Index most, Index least)
      : rows(rows_), chunk_rows(whole_strips(std::max(least, ceil_div(rows_, most)))) {}

  Index count() const { return ceil_div(rows, chunk_rows); }
  Index begin(Index chunk) const { return chunk * chunk_rows; }
  Index end(Index chunk) const { return std::min(rows, begin(chunk) + chunk_rows); }

 private:
  static Index whole_strips(Index count) { return round_up(count, kLayerStrip); }
};

/// Checks the shape of a view and that its rows are contiguous. Written rows must not share
/// elements.
template <class T>
void expect_rows(const char* function, const char* argument, const MatrixView<T>& m, Index rows,
                 Index cols) {
  expect_shape(function, argument, m, rows, cols);
  if (m.cols > 1 && m.col_stride != 1) {
    fail_option(function, argument, "has column stride " + std::to_string(m.col_stride), "1");
  }
  if constexpr (!std::is_const_v<T>) expect_distinct(function, argument, m);
}

/// Checks rows as expect_rows does, unless the view is absent.
template <class T>
void expect_rows_or_none(const char* function, const char* argument, const MatrixView<T>& m,
                         Index rows, Index cols) {
  if (!m.absent()) expect_rows(function, argument, m, rows, cols);
}

/// Throws unless items of `each` rows fill the rows of an argument.
/// \param whose  owner of the rows in errors, such as "the table's positions"
inline void expect_whole_items(const char* function, const char* argument, Index rows, Index each,
                               const char* whose) {
  if (each == 0 ? rows != 0 : rows % each != 0) {
    fail_shape(function, argument, "has " + std::to_string(rows) + " rows",
               "a multiple of " + std::to_string(each) + " (" + whose + ")");
  }
}

/// Throws unless a row of parameters, or of their gradient, has `expected` elements.
inline void expect_elements(const char* function, const char* argument, std::size_t count,
                            Index expected) {
  if (static_cast<Index>(count) != expected) {
    fail_shape(function, argument, "has " + std::to_string(count) + " elements",
               std::to_string(expected));
  }
}

inline void expect_positive(const char* function, const char* argument, Index value) {
  if (value < 1) fail_option(function, argument, "is " + std::to_string(value), "at least 1");
}
/// Throws unless channels^2 numbers, the size of a layer's weights, fit Index.
inline void expect_channels(const char* function, Index channels) {
  expect_positive(function, "channels", channels);
  checked_product(function, "channels", {channels, channels});
}

inline void expect_above_zero(const char* function, const char* argument, double value) {
  if (!(value > 0)) fail_option(function, argument, "is " + std::to_string(value), "more than 0");
}
inline void expect_not_negative(const char* function, const char* argument, double value) {
  if (!(value >= 0)) fail_option(function, argument, "is " + std::to_string(value), "0 or more");
}

/// Checks the number of elements, which may be 0.
inline void expect_elements_or_none(const char* function, const char* argument, std::size_t count,
                                    Index expected) {
  if (count != 0 && static_cast<Index>(count) != expected) {
    fail_shape(function, argument, "has " + std::to_string(count) + " elements",
               std::to_string(expected) + " or none");
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
