#pragma once

/// \file
/// Stage 4 of 5: positions of the coefficients of a mixing matrix [Mq,Mk], and their memory layout.
/// With a band, cost grows with M instead of M^2. With lists of key blocks per row, cost grows with
/// the number of coefficients. Other entries are 0, are not stored and have no gradient. Numbers of
/// a band that block_causal leaves out are stored, but not used.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

/// Coefficients listed by row, and the same coefficients listed by column.
struct PatternLists {
  std::vector<Index> row_begin{};     ///< [Mq+1], storage index of each row's first coefficient
  std::vector<Index> columns{};       ///< [places], ascending within a row
  std::vector<Index> column_begin{};  ///< [Mk+1]
  std::vector<Index> rows{};          ///< [places], ascending within a column
  std::vector<Index> places{};        ///< [places], storage indices in column order

  friend bool operator==(const PatternLists& a, const PatternLists& b) {
    return a.row_begin == b.row_begin && a.columns == b.columns;
  }
};

/// Ascending blocks of one row or column, and the storage indices of their coefficients: first,
/// first + 1, ..., or places[0], places[1], ...
struct PatternList {
  const Index* blocks;
  const Index* places;
  Index first;
  Index count;

  Index place(Index n) const { return places == nullptr ? first + n : places[n]; }
  /// The blocks in [begin, end).
  PatternList between(Index begin, Index end) const {
    const Index* const from = std::lower_bound(blocks, blocks + count, begin);
    const Index* const to = std::lower_bound(from, blocks + count, std::max(begin, end));
    const Index skipped = from - blocks;
    return {from, places == nullptr ? nullptr : places + skipped, first + skipped, to - from};
  }
};

}  // namespace detail

/// Positions of the coefficients of a mixing matrix.
class Pattern {
 public:
  Pattern() = default;
  /// The band i - lower <= b <= i + upper. Row i stores width() numbers, from column first(i) on.
  /// Numbers from column last(i) on are no coefficients and stay 0.
  /// \throws option_error if the matrix is empty or a bandwidth is negative.
  Pattern(Index rows, Index cols, Index lower, Index upper);
  /// All entries of a matrix.
  Pattern(Index rows, Index cols)
      : Pattern(rows, cols, std::max<Index>(rows, 0), std::max<Index>(cols, 0)) {}
  /// Row i has the columns lists[i]. Coefficients are stored row after row.
  /// \throws option_error if the matrix is empty, or unless the columns of a row ascend in
  ///     [0, cols).
  Pattern(Index cols, const std::vector<std::vector<Index>>& lists);

  /// The same numbers in memory, without the coefficients of blocks in later steps than their
  /// row's. A step is `step` consecutive blocks, such as those of a frame: row i keeps the columns
  /// b < (i / step + 1) step.
  /// \throws option_error if step < 1, if lists have a column of a later step, or for a pattern
  ///     with steps of another size.
  /// \param function  that errors name
  Pattern block_causal(Index step, const char* function = "block_causal") const;

  Index rows() const { return rows_; }  ///< Mq, query blocks
  Index cols() const { return cols_; }  ///< Mk, key blocks
  bool sparse() const { return lists_ != nullptr; }
  bool holds(Index i, Index b) const { return place(i, b) >= 0; }
  /// Count of stored numbers.
  Index size() const {
    return sparse() ? static_cast<Index>(lists_->columns.size()) : rows_ * width();
  }
  /// Storage index of m_ib, or -1 if the pattern lacks it.
  Index place(Index i, Index b) const;
  /// Calls f(b, place) for the coefficients of row i, b ascending.
  template <class F>
  void for_each_in_row(Index i, F&& f) const;
  friend bool operator==(const Pattern& a, const Pattern& b);

  // Bands only:
  Index first(Index i) const { return std::clamp<Index>(i - lower_, 0, cols_); }
  Index last(Index i) const {
    return std::clamp<Index>(std::min(i + upper_, last_of_step(i)) + 1, 0, cols_);
  }
  /// The rows that hold column b: [first_row(b), last_row(b)).
  Index first_row(Index b) const {
    return std::clamp<Index>(std::max(b - upper_, step_ == 0 ? 0 : b / step_ * step_), 0, rows_);
  }
  Index last_row(Index b) const { return std::clamp<Index>(b + lower_ + 1, 0, rows_); }
  /// Numbers stored per row: the coefficients of the widest row.
  Index width() const { return std::min(cols_, lower_ + upper_ + 1); }

  // Lists only:
  detail::PatternList row(Index i) const;
  detail::PatternList column(Index b) const;

 private:
  /// The last block of the step of block i, or the last block of all.
  Index last_of_step(Index i) const {
    return step_ == 0 ? cols_ - 1 : i / step_ * step_ + step_ - 1;
  }

  Index rows_ = 0, cols_ = 0, lower_ = 0, upper_ = 0;
  Index step_ = 0;  // blocks; 0: rows hold blocks of later steps too
  std::shared_ptr<const detail::PatternLists> lists_;  // null: a band
};

// ------------------------------------------------------------------------------------------------

namespace detail {

inline void expect_coefficients(Index rows, Index cols) {
  if (rows >= 1 && cols >= 1) return;
  fail_option("MixingMatrix", "coefficients", "have shape " + shape_text({rows, cols}),
              "at least one row and one column");
}

/// Joins the lists of all rows, and sorts them by column too.
inline PatternLists pattern_lists(Index cols, const std::vector<std::vector<Index>>& lists) {
  const auto at = [](Index i) { return static_cast<std::size_t>(i); };
  PatternLists all{.row_begin = {0}, .column_begin = std::vector<Index>(at(cols + 1), 0)};
  for (const std::vector<Index>& list : lists) {
    for (std::size_t n = 0; n < list.size(); ++n) {
      if (list[n] < (n == 0 ? 0 : list[n - 1] + 1) || list[n] >= cols) {
        fail_option("Pattern", "lists",
                    "have column " + std::to_string(list[n]) + " as number " + std::to_string(n) +
                        " of row " + std::to_string(all.row_begin.size() - 1),
                    "ascending columns below " + std::to_string(cols));
      }
      all.columns.push_back(list[n]);
      ++all.column_begin[at(list[n] + 1)];
    }
    all.row_begin.push_back(static_cast<Index>(all.columns.size()));
  }
  for (Index b = 0; b < cols; ++b) all.column_begin[at(b + 1)] += all.column_begin[at(b)];
  all.rows.resize(all.columns.size());
  all.places.resize(all.columns.size());
  std::vector<Index> next = all.column_begin;
  for (Index i = 0; i + 1 < static_cast<Index>(all.row_begin.size()); ++i) {
    for (Index place = all.row_begin[at(i)]; place < all.row_begin[at(i + 1)]; ++place) {
      const std::size_t to = at(next[at(all.columns[at(place)])]++);
      all.rows[to] = i;
      all.places[to] = place;
    }
  }
  return all;
}

}  // namespace detail

inline Pattern::Pattern(Index rows, Index cols, Index lower, Index upper)
    : rows_(rows),
      cols_(cols),
      lower_(std::min(lower, rows - 1)),
      upper_(std::min(upper, cols - 1)) {
  detail::expect_coefficients(rows, cols);
  if (lower < 0 || upper < 0) {
    detail::fail_option("MixingMatrix", "band",
                        "is " + std::to_string(lower) + " below and " + std::to_string(upper) +
                            " above the diagonal",
                        "bandwidths >= 0");
  }
  detail::checked_product("MixingMatrix", "coefficients", {rows, width()});
}

inline Pattern::Pattern(Index cols, const std::vector<std::vector<Index>>& lists)
    : rows_(static_cast<Index>(lists.size())), cols_(cols), lower_(rows_), upper_(cols) {
  detail::expect_coefficients(rows_, cols_);
  lists_ = std::make_shared<const detail::PatternLists>(detail::pattern_lists(cols, lists));
}

inline Pattern Pattern::block_causal(Index step, const char* function) const {
  if (step < 1) {
    detail::fail_option(function, "step", "is " + std::to_string(step), "at least 1 block");
  }
  if (!sparse() && step_ != 0 && step_ != step) {
    detail::fail_option(function, "mixing", "has steps of " + std::to_string(step_) + " blocks",
                        "steps of " + std::to_string(step) + ", or a matrix without steps");
  }
  Pattern part = *this;
  part.step_ = step;
  for (Index i = 0; sparse() && i < rows_; ++i) {
    const detail::PatternList list = row(i);
    const Index last = list.count == 0 ? 0 : list.blocks[list.count - 1];
    if (last > part.last_of_step(i)) {
      detail::fail_option(function, "mixing",
                          "lists block " + std::to_string(last) + " for block " + std::to_string(i),
                          "blocks of no later step, up to " + std::to_string(part.last_of_step(i)));
    }
  }
  return part;
}

inline detail::PatternList Pattern::row(Index i) const {
  const Index first = lists_->row_begin[static_cast<std::size_t>(i)];
  return {lists_->columns.data() + first, nullptr, first,
          lists_->row_begin[static_cast<std::size_t>(i + 1)] - first};
}

inline detail::PatternList Pattern::column(Index b) const {
  const Index first = lists_->column_begin[static_cast<std::size_t>(b)];
  return {lists_->rows.data() + first, lists_->places.data() + first, first,
          lists_->column_begin[static_cast<std::size_t>(b + 1)] - first};
}

inline Index Pattern::place(Index i, Index b) const {
  if (i < 0 || i >= rows_ || b < 0 || b >= cols_) return -1;
  if (sparse()) {
    const detail::PatternList found = row(i).between(b, b + 1);
    return found.count == 0 ? -1 : found.first;
  }
  return b >= first(i) && b < last(i) ? i * width() + b - first(i) : -1;
}

template <class F>
void Pattern::for_each_in_row(Index i, F&& f) const {
  if (sparse()) {
    const detail::PatternList list = row(i);
    for (Index n = 0; n < list.count; ++n) f(list.blocks[n], list.first + n);
  } else {
    for (Index b = first(i); b < last(i); ++b) f(b, i * width() + b - first(i));
  }
}

inline bool operator==(const Pattern& a, const Pattern& b) {
  if (a.sparse() != b.sparse() || a.rows_ != b.rows_ || a.cols_ != b.cols_) return false;
  if (a.sparse()) return a.lists_ == b.lists_ || *a.lists_ == *b.lists_;
  return a.lower_ == b.lower_ && a.upper_ == b.upper_ && a.step_ == b.step_;
}

namespace detail {

/// Summaries that a row of a form may read: all, or those of earlier blocks.
enum class Reach { kAll, kEarlier };

/// Columns of row i that may be read, of the leading `blocks` columns.
inline ColumnSpan readable(const Pattern& band, Index i, Reach reach, Index blocks) {
  const Index end = std::min(band.last(i), reach == Reach::kEarlier ? std::min(i, blocks) : blocks);
  return {std::min(band.first(i), end), end};
}

/// Rows that read column b, of the leading `blocks` rows.
inline ColumnSpan readers(const Pattern& band, Index b, Reach reach, Index blocks) {
  const Index end = std::min(band.last_row(b), blocks);
  const Index begin =
      reach == Reach::kEarlier ? std::max(band.first_row(b), b + 1) : band.first_row(b);
  return {std::min(begin, end), end};
}

/// The blocks that row i of lists may read, of the leading `blocks` columns.
inline PatternList readable_list(const Pattern& p, Index i, Reach reach, Index blocks) {
  return p.row(i).between(0, reach == Reach::kEarlier ? std::min(i, blocks) : blocks);
}

/// The rows of lists that read column b, of the leading `blocks` rows.
inline PatternList reader_list(const Pattern& p, Index b, Reach reach, Index blocks) {
  return p.column(b).between(reach == Reach::kEarlier ? b + 1 : 0, blocks);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
