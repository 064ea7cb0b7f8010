#pragma once

/// \file
/// Stage 4 of 5: a view of a mixing matrix m [Mq,Mk], dense or banded, or of its gradient.
///
/// One matrix serves all heads and all items of a batch. Coefficients are any real numbers: the
/// paper keeps them nonnegative with rows that sum to 1, trained weights need not be. A banded
/// matrix stores and mixes only a band, so cost grows with M and not with M^2. mixing_matrix.hpp
/// has a matrix that owns its coefficients. Source: arXiv:2601.07832, section 4.2.

#include <algorithm>
#include <concepts>
#include <span>
#include <string>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The coefficients i - lower <= b <= i + upper of a matrix [Mq,Mk], and their layout: row i has
/// width() numbers, from column first(i) on. Those from last(i) on are no coefficients and stay 0.
class Band {
 public:
  Band() = default;
  /// \throws option_error if the matrix is empty or a bandwidth is negative.
  Band(Index rows, Index cols, Index lower, Index upper);
  /// All coefficients of a matrix.
  Band(Index rows, Index cols)
      : Band(rows, cols, std::max<Index>(rows, 0), std::max<Index>(cols, 0)) {}

  Index rows() const { return rows_; }  ///< Mq, query blocks
  Index cols() const { return cols_; }  ///< Mk, key blocks
  Index first(Index i) const { return std::clamp<Index>(i - lower_, 0, cols_); }
  Index last(Index i) const { return std::clamp<Index>(i + upper_ + 1, 0, cols_); }
  /// The rows that hold column b: [first_row(b), last_row(b)).
  Index first_row(Index b) const { return std::clamp<Index>(b - upper_, 0, rows_); }
  Index last_row(Index b) const { return std::clamp<Index>(b + lower_ + 1, 0, rows_); }
  bool holds(Index i, Index b) const { return i >= 0 && i < rows_ && b >= first(i) && b < last(i); }
  /// Coefficients of the widest row: the row stride in memory.
  Index width() const { return std::min(cols_, lower_ + upper_ + 1); }
  Index size() const { return rows_ * width(); }
  friend bool operator==(const Band&, const Band&) = default;

 private:
  Index rows_ = 0, cols_ = 0, lower_ = 0, upper_ = 0;
};

/// A view of a mixing matrix or of its gradient. Skips zeros outside the band. Owns nothing.
template <class A>
class MixingView {
  using Dense = std::conditional_t<std::is_const_v<A>, const Matrix<std::remove_const_t<A>>,
                                   Matrix<std::remove_const_t<A>>>;

 public:
  /// Absent: an optional gradient left out.
  constexpr MixingView() = default;
  /// \param data  band.size() numbers
  MixingView(A* data, const Band& band) : data_(data), band_(band) {}
  /// All coefficients of a matrix, in its memory.
  /// \throws option_error if it is empty.
  explicit MixingView(Dense& m) : MixingView(m.data(), Band(m.rows(), m.cols())) {}
  explicit MixingView(const Dense&& m) = delete;  // would dangle
  template <std::same_as<const A> C>
  requires(!std::is_const_v<A>) operator MixingView<C>() const {  // NOLINT
    return {data_, band_};
  }

  bool absent() const { return data_ == nullptr; }
  const Band& band() const { return band_; }
  Index rows() const { return band_.rows(); }  ///< Mq, query blocks
  Index cols() const { return band_.cols(); }  ///< Mk, key blocks
  /// All numbers in memory, for optimisers and files.
  std::span<A> storage() const { return {data_, static_cast<std::size_t>(band_.size())}; }
  /// Column 0 of row i, if it were stored: element b is m_ib for first(i) <= b < last(i).
  A* row_from_zero(Index i) const { return data_ + i * band_.width() - band_.first(i); }

  /// m_ib, 0 outside the band.
  std::remove_const_t<A> operator()(Index i, Index b) const {
    return band_.holds(i, b) ? row_from_zero(i)[b] : A(0);
  }
  /// A coefficient to write.
  /// \throws option_error outside the band.
  A& at(Index i, Index b) const;

  /// All coefficients, zeros included.   // [Mq,Mk]
  Matrix<std::remove_const_t<A>> dense() const;

  /// Calls f(coefficient) for every stored coefficient of every row.
  template <class F>
  void for_each(F&& f) const {
    for (Index i = 0; i < rows(); ++i) {
      for (Index b = band_.first(i); b < band_.last(i); ++b) f(row_from_zero(i)[b]);
    }
  }

 private:
  A* data_ = nullptr;
  Band band_;
};

// ------------------------------------------------------------------------------------------------

inline Band::Band(Index rows, Index cols, Index lower, Index upper)
    : rows_(rows), cols_(cols), lower_(std::min(lower, rows)), upper_(std::min(upper, cols)) {
  if (rows < 1 || cols < 1) {
    detail::fail_option("MixingMatrix", "coefficients",
                        "have shape " + detail::shape_text({rows, cols}),
                        "at least one row and one column");
  }
  if (lower < 0 || upper < 0) {
    detail::fail_option("MixingMatrix", "band",
                        "is " + std::to_string(lower) + " below and " + std::to_string(upper) +
                            " above the diagonal",
                        "bandwidths >= 0");
  }
  detail::checked_product("MixingMatrix", "coefficients", {rows, width()});
}

template <class A>
A& MixingView<A>::at(Index i, Index b) const {
  if (!band_.holds(i, b)) {
    detail::fail_option(
        "MixingMatrix::at", "position", "is " + detail::shape_text({i, b}),
        "a place inside the band of a " + detail::shape_text({rows(), cols()}) + " matrix");
  }
  return row_from_zero(i)[b];
}

template <class A>
Matrix<std::remove_const_t<A>> MixingView<A>::dense() const {
  Matrix<std::remove_const_t<A>> all(rows(), cols());
  for (Index i = 0; i < rows(); ++i) {
    for (Index b = 0; b < cols(); ++b) all(i, b) = (*this)(i, b);
  }
  return all;
}

namespace detail {

/// Throws unless m is [rows, cols]; without query or key blocks nothing is mixed.
template <class A>
void expect_mixing(const char* function, const MixingView<A>& m, Index rows, Index cols) {
  if ((rows > 0 && m.rows() != rows) || (cols > 0 && m.cols() != cols)) {
    fail_shape(function, "mixing", "has shape " + shape_text({m.rows(), m.cols()}),
               shape_text({rows, cols}) + " (query blocks, key blocks)");
  }
}

/// Throws unless m has at least [rows, cols] coefficients.
template <class A>
void expect_leading_mixing(const char* function, const MixingView<A>& m, Index rows, Index cols) {
  if (m.rows() < rows || m.cols() < cols) {
    fail_shape(function, "mixing", "has shape " + shape_text({m.rows(), m.cols()}),
               "at least " + shape_text({rows, cols}) + " for the blocks of the sequence");
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
