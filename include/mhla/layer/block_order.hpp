#pragma once

/// \file
/// Tokens in the order of their blocks: block after block, and in a block by slot.
///
///     to_blocks      y[place] = x[order[place]]                        x, y [N,C], order [tokens]
///     from_blocks    y[order[place]] = x[place]
///
/// for each item of a batch of N / tokens. In that order the blocks are BlockSizes, or Contiguous
/// if they are equal. Each function undoes the other and is its adjoint: the gradient of to_blocks
/// is from_blocks of the gradient, and vice versa. Both assign.
///
/// Rows of all views are contiguous (column stride 1) at any row stride. Outputs overlap nothing
/// else.

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/policy/partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Returns the tokens of all blocks, one block after another, each in the order of its runs.
/// \throws shape_error unless the blocks cover all tokens.
template <Partition P>
std::vector<Index> block_order(const P& blocks);

/// Writes the rows of x [N,C] in the order of blocks into y [N,C], for N a multiple of the tokens.
/// \param order     every token of [0, tokens) once, as block_order has them
/// \param executor  splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched. Repeated
///         tokens in `order` are not detected.
template <LayerInput X>
void to_blocks(const X& x, std::span<const Index> order, const detail::output_t<X>& y,
               const ExecutorRef& executor = {});

/// Copies rows x [N,C] in the order of blocks back to their tokens y [N,C]. Otherwise as to_blocks.
template <LayerInput X>
void from_blocks(const X& x, std::span<const Index> order, const detail::output_t<X>& y,
                 const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Throws unless `order` is of tokens [0, tokens), and x of items with as many rows, and y as x.
template <Accumulator A>
void expect_block_order(const char* function, MatrixView<const A> x, std::span<const Index> order,
                        MatrixView<A> y) {
  expect_rows(function, "x", x, -1, -1);
  const Index tokens = std::ssize(order);
  expect_whole_items(function, "x", x.rows, tokens, "the tokens of the order");
  for (Index place = 0; place < tokens; ++place) {
    const Index token = order[static_cast<std::size_t>(place)];
    if (token < 0 || token >= tokens) {
      fail_option(function, "order",
                  "has " + std::to_string(token) + " at place " + std::to_string(place),
                  "tokens of [0, " + std::to_string(tokens) + ")");
    }
  }
  expect_rows(function, "y", y, x.rows, x.cols);
}

/// Runs f(row of the place, row of its token) for all places of all items.
template <class F>
void for_each_place(Index rows, std::span<const Index> order, const ExecutorRef& executor, F&& f) {
  const Index tokens = std::ssize(order);
  for_each_layer_strip(rows, executor, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) {
      const Index place = r % tokens;
      f(r, r - place + order[static_cast<std::size_t>(place)]);
    }
  });
}

}  // namespace detail

template <Partition P>
std::vector<Index> block_order(const P& blocks) {
  detail::expect_partition("block_order", "blocks", blocks, blocks.tokens());
  std::vector<Index> order;
  order.reserve(static_cast<std::size_t>(blocks.tokens()));
  for (Index b = 0; b < blocks.blocks(); ++b) {
    for (Index r = 0; r < blocks.runs(b); ++r) {
      const Run run = blocks.run(b, r);
      for (Index i = 0; i < run.length; ++i) order.push_back(run.begin + i);
    }
  }
  return order;
}

template <LayerInput X>
void to_blocks(const X& input, std::span<const Index> order, const detail::output_t<X>& y,
               const ExecutorRef& executor) {
  const detail::input_t<X> x(input);
  detail::expect_block_order<detail::element_t<X>>("to_blocks", x, order, y);
  detail::for_each_place(x.rows, order, executor, [&](Index place, Index token) {
    std::copy_n(x.row(token), x.cols, y.row(place));
  });
}

template <LayerInput X>
void from_blocks(const X& input, std::span<const Index> order, const detail::output_t<X>& y,
                 const ExecutorRef& executor) {
  const detail::input_t<X> x(input);
  detail::expect_block_order<detail::element_t<X>>("from_blocks", x, order, y);
  detail::for_each_place(x.rows, order, executor, [&](Index place, Index token) {
    std::copy_n(x.row(place), x.cols, y.row(token));
  });
}

}  // namespace MHLA_TARGET
}  // namespace mhla
