#pragma once

/// \file
/// Stage 4 of 5: a mixing matrix that depends on the offset between blocks alone, for any grid of
/// blocks. Its parameters are a table f over the offsets along 1, 2 or 3 axes:
///
///     w_ib = f(place of i - place of b)    in blocks along each axis, clamped to the table
///     m_ib = w_ib / sum_b' w_ib'           rows sum to 1, or m_ib = w_ib
///
/// distance_matrix writes the coefficients of a grid, and every form, stream and rank takes them.
/// Derivatives: distance_derivatives.hpp.
/// So a model that is trained on one grid runs on others. Rows sum to 1 by default, as in the
/// paper. Otherwise their sums grow with the grid, since a larger grid has more blocks per row.
/// Outputs grow with them under a normaliser that does not divide by key sums.
///
/// Sums go over the blocks of a pattern, so causal forms need that of the lower triangle. The
/// table's offsets of later blocks are then never read.
///
/// Cost: M^2 numbers per head and call, or those of the pattern. A form takes 2 D (E + 1)
/// multiply-adds for each of them.

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/locality.hpp"
#include "mhla/policy/mixing_constraints.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A non-owning view of a table of coefficients by offset, or of its gradient.
template <class A>
class DistanceView {
 public:
  /// An absent view.
  constexpr DistanceView() = default;
  /// \param data     [heads, offsets[0], offsets[1], offsets[2]] numbers
  /// \param offsets  odd numbers of offsets along each axis: GridShape(7) holds those from -3 to 3,
  ///     and GridShape(5, 5) up to 2 blocks along both axes of an image
  /// \param heads    with a table, or 1 if all heads share it
  /// \throws option_error unless offsets are odd and >= 1, and heads >= 1.
  DistanceView(A* data, GridShape offsets, Index heads = 1, bool rows_sum_to_one = true);
  template <std::same_as<const A> C>
  requires(!std::is_const_v<A>) operator DistanceView<C>() const {  // NOLINT
    return absent() ? DistanceView<C>()
                    : DistanceView<C>(data_, offsets_, heads_, rows_sum_to_one_);
  }

  bool absent() const { return data_ == nullptr; }
  GridShape offsets() const { return offsets_; }
  Index heads() const { return heads_; }
  bool rows_sum_to_one() const { return rows_sum_to_one_; }
  /// Numbers of a head's table.
  Index size() const { return offsets_[0] * offsets_[1] * offsets_[2]; }
  /// All numbers in memory, for optimisers and files.
  std::span<A> storage() const { return {data_, static_cast<std::size_t>(heads_ * size())}; }
  /// Place of an offset in a head's table: of the nearest one that the table has.
  /// \param offset  the query block's place minus the key block's, along each axis
  Index place(const std::array<Index, 3>& offset) const {
    Index place = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const Index reach = offsets_[axis] / 2;
      const Index along = offset[static_cast<std::size_t>(axis)];
      place = place * offsets_[axis] + std::clamp(along, -reach, reach) + reach;
    }
    return place;
  }
  /// f of an offset.
  A& at(const std::array<Index, 3>& offset, Index head = 0) const {
    return data_[head * size() + place(offset)];
  }

 private:
  A* data_ = nullptr;
  GridShape offsets_{1};
  Index heads_ = 1;
  bool rows_sum_to_one_ = true;
};

/// A table of coefficients by offset that owns its numbers. Converts implicitly to a DistanceView.
template <Accumulator A>
class DistanceMixing {
 public:
  /// Zeros, such as memory for a gradient. Parameters are those of DistanceView.
  explicit DistanceMixing(GridShape offsets, Index heads = 1, bool rows_sum_to_one = true);

  DistanceView<A> view() { return {table_.data(), offsets_, heads_, rows_sum_to_one_}; }
  DistanceView<const A> view() const { return {table_.data(), offsets_, heads_, rows_sum_to_one_}; }
  operator DistanceView<A>() MHLA_LIFETIMEBOUND { return view(); }              // NOLINT
  operator DistanceView<const A>() const MHLA_LIFETIMEBOUND { return view(); }  // NOLINT

  GridShape offsets() const { return offsets_; }
  Index heads() const { return heads_; }
  bool rows_sum_to_one() const { return rows_sum_to_one_; }
  std::span<A> storage() { return table_; }
  std::span<const A> storage() const { return table_; }

 private:
  GridShape offsets_;
  Index heads_;
  bool rows_sum_to_one_;
  std::vector<A> table_;  // [heads, offsets]
};

/// Returns a start that favours near blocks: f is what the centre of a grid of `offsets` blocks
/// reads in locality(offsets, options).
/// \throws option_error as DistanceView and locality.
template <Accumulator A = float>
DistanceMixing<A> distance_locality(GridShape offsets, const LocalityOptions& options = {},
                                    Index heads = 1);

/// Returns the coefficients of a grid of blocks in raster order.   // [M,M], or [H,M,M]
/// \param blocks   blocks along each axis: GridShape(M), Grid::block_grid(), ...
/// \param pattern  coefficients that are wanted: for causal forms Pattern(M, M, M, 0)
/// \throws shape_error unless the pattern is [M,M].
/// \throws option_error if f is absent or `blocks` has a size below 1.
/// \throws option_error if a row should sum to 1, and its sum is 0 or not finite.
template <class A>
MixingMatrix<std::remove_const_t<A>> distance_matrix(const DistanceView<A>& f, GridShape blocks,
                                                     const Pattern& pattern);
/// Returns all coefficients.
template <class A>
MixingMatrix<std::remove_const_t<A>> distance_matrix(const DistanceView<A>& f, GridShape blocks);
template <Accumulator A, class... Rest>
MixingMatrix<A> distance_matrix(const DistanceMixing<A>& f, GridShape blocks, const Rest&... rest) {
  return distance_matrix(f.view(), blocks, rest...);
}

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Throws unless a table may have these sizes.
inline void expect_table(GridShape offsets, Index heads) {
  expect_grid("DistanceMixing", "offsets", offsets);
  for (const Index count : offsets.sizes) {
    if (count % 2 == 0) {
      fail_option("DistanceMixing", "offsets", "is " + grid_text(offsets),
                  "odd sizes, as many offsets before as after");
    }
  }
  if (heads < 1) {
    fail_option("DistanceMixing", "heads", "are " + std::to_string(heads), "at least 1");
  }
  checked_product("DistanceMixing", "offsets", {heads, offsets[0], offsets[1], offsets[2]});
}

/// Throws unless f is present and a matrix is of these blocks.
template <class A, class N>
void expect_blocks_of(const char* function, const DistanceView<A>& f, GridShape blocks,
                      const MixingView<N>& m) {
  if (f.absent()) fail_option(function, "f", "is absent", "a table of coefficients");
  expect_grid(function, "blocks", blocks);
  const Index count = blocks[0] * blocks[1] * blocks[2];
  expect_mixing(function, m, count, count);
}

/// The places of the coefficients of a grid in a table.
template <class A>
class OffsetPlaces {
 public:
  OffsetPlaces(const DistanceView<A>& f, GridShape blocks) : f_(f), blocks_(blocks) {}
  /// Returns a function of b: the place of m_ib.
  auto row(Index i) const {
    return [this, query = block(i)](Index b) {
      const auto key = block(b);
      return f_.place({query[0] - key[0], query[1] - key[1], query[2] - key[2]});
    };
  }
  Index operator()(Index i, Index b) const { return row(i)(b); }

 private:
  /// The place of a block in the grid.
  std::array<Index, 3> block(Index i) const {
    return {i / (blocks_[1] * blocks_[2]), i / blocks_[2] % blocks_[1], i % blocks_[2]};
  }

  DistanceView<A> f_;
  GridShape blocks_;
};

/// Writes the coefficients of a grid that m has in its pattern. Allocates nothing.
/// \param function, argument  names of the call and of f in errors
template <class A>
void write_distance_matrix(const char* function, const char* argument, const DistanceView<A>& f,
                           GridShape blocks, const MixingView<std::remove_const_t<A>>& m) {
  expect_blocks_of(function, f, blocks, MixingView<const std::remove_const_t<A>>(m));
  const OffsetPlaces<A> places(f, blocks);
  for (Index h = 0; h < m.heads(); ++h) {
    const A* const table = f.storage().data() + h * f.size();
    for (Index i = 0; i < m.rows(); ++i) {
      const auto place = places.row(i);
      m.of_head(h).for_each_in_row(
          i, [&](Index b, std::remove_const_t<A>& c) { c = table[place(b)]; });
    }
  }
  if (f.rows_sum_to_one()) normalize_rows(function, argument, m);
}

}  // namespace detail

template <class A>
DistanceView<A>::DistanceView(A* data, GridShape offsets, Index heads, bool rows_sum_to_one)
    : data_(data), offsets_(offsets), heads_(heads), rows_sum_to_one_(rows_sum_to_one) {
  detail::expect_table(offsets, heads);
}

template <Accumulator A>
DistanceMixing<A>::DistanceMixing(GridShape offsets, Index heads, bool rows_sum_to_one)
    : offsets_(offsets), heads_(heads), rows_sum_to_one_(rows_sum_to_one) {
  detail::expect_table(offsets, heads);
  table_.resize(static_cast<std::size_t>(heads * offsets[0] * offsets[1] * offsets[2]));
}

template <Accumulator A>
DistanceMixing<A> distance_locality(GridShape offsets, const LocalityOptions& options,
                                    Index heads) {
  DistanceMixing<A> f(offsets, heads);
  // Rows that sum to 1 do not depend on others, so the one of the centre suffices.
  const bool by_row = options.sum_to_one == SumToOne::kRows;
  const MixingMatrix<A> whole =
      by_row ? locality<A>(GridShape(1), offsets, options) : locality<A>(offsets, options);
  const std::span<const A> all = whole.storage();
  const auto count = static_cast<std::size_t>(whole.cols()),
             centre = by_row ? 0 : count / 2 * count;
  const std::span<A> table = f.storage();
  for (std::size_t n = 0; n < table.size(); ++n) table[n] = all[centre + n % count];
  return f;
}

template <class A>
MixingMatrix<std::remove_const_t<A>> distance_matrix(const DistanceView<A>& f, GridShape blocks,
                                                     const Pattern& pattern) {
  MixingMatrix<std::remove_const_t<A>> m(pattern, f.heads());
  detail::write_distance_matrix("distance_matrix", "f", f, blocks, m.view());
  return m;
}

template <class A>
MixingMatrix<std::remove_const_t<A>> distance_matrix(const DistanceView<A>& f, GridShape blocks) {
  detail::expect_grid("distance_matrix", "blocks", blocks);
  const Index count = blocks[0] * blocks[1] * blocks[2];
  return distance_matrix(f, blocks, Pattern(count, count));
}

}  // namespace MHLA_TARGET
}  // namespace mhla
