#pragma once

/// \file
/// Stage 4 of 5: the mixing matrix m [Mq,Mk]: how much query block i reads of key block b.
///
/// One matrix serves all heads and all items of a batch. Coefficients are any real numbers: the
/// paper keeps them nonnegative with rows that sum to 1, trained weights need not. A banded matrix
/// stores and mixes only a band, so cost grows with M and not with M^2.
/// Initial values by distance between blocks are in locality.hpp.
/// Source: arXiv:2601.07832, section 4.2.

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"

namespace mhla::inline MHLA_TARGET {

/// A dense or banded mixing matrix. Row i holds columns [first(i), last(i)); all others are 0 and
/// are skipped, not multiplied.
template <Accumulator A>
class MixingMatrix {
 public:
  /// All coefficients of a dense matrix [Mq,Mk], any real values.
  /// \throws option_error if it is empty.
  template <class Derived>
  explicit MixingMatrix(const Eigen::DenseBase<Derived>& coefficients);

  /// Zeros in the band i - lower <= b <= i + upper of an [Mq,Mk] matrix, to be filled by `at`.
  /// \throws option_error if the matrix is empty or a bandwidth is negative.
  static MixingMatrix banded(Index rows, Index cols, Index lower, Index upper);

  /// The band i - lower <= b <= i + upper of a dense matrix; what lies outside is dropped.
  template <class Derived>
  static MixingMatrix banded(const Eigen::DenseBase<Derived>& coefficients, Index lower,
                             Index upper);

  Index rows() const { return values_.rows(); }  ///< Mq, query blocks
  Index cols() const { return cols_; }           ///< Mk, key blocks
  Index first(Index i) const { return std::clamp<Index>(i - lower_, 0, cols_); }
  Index last(Index i) const { return std::clamp<Index>(i + upper_ + 1, 0, cols_); }
  /// The rows that hold column b: [first_row(b), last_row(b)).
  Index first_row(Index b) const { return std::clamp<Index>(b - upper_, 0, rows()); }
  Index last_row(Index b) const { return std::clamp<Index>(b + lower_ + 1, 0, rows()); }
  /// The coefficient of column first(i); those up to last(i) follow it in memory.
  const A* row(Index i) const { return values_.data() + i * values_.cols(); }
  /// Coefficients of the widest row: how far rows lie apart in memory.
  Index width() const { return values_.cols(); }
  /// All rows(), width() numbers of memory, for optimisers and files. What lies behind the last
  /// coefficient of a row is none of them and stays 0.
  std::span<A> storage() { return {values_.data(), static_cast<std::size_t>(values_.size())}; }
  std::span<const A> storage() const {
    return {values_.data(), static_cast<std::size_t>(values_.size())};
  }
  /// True if m has the same shape and the same band.
  bool same_band(const MixingMatrix& m) const {
    return rows() == m.rows() && cols() == m.cols() && lower_ == m.lower_ && upper_ == m.upper_;
  }

  /// m_ib, 0 outside the band.
  A operator()(Index i, Index b) const {
    return b >= first(i) && b < last(i) ? row(i)[b - first(i)] : A(0);
  }
  /// A coefficient to write.
  /// \throws option_error outside the band.
  A& at(Index i, Index b);

  /// All coefficients, zeros included.   // [Mq,Mk]
  Matrix<A> dense() const;

  /// Calls f(coefficient) for every stored coefficient of every row.
  template <class F>
  void for_each(F&& f);

 private:
  MixingMatrix(Index rows, Index cols, Index lower, Index upper);

  Index cols_;
  Index lower_;
  Index upper_;
  Matrix<A> values_;  // [Mq, widest row]; row i starts with column first(i)
};

/// The lower triangle of m, stored as a band: what the causal form reads of it.
template <Accumulator A>
MixingMatrix<A> lower_triangle(const MixingMatrix<A>& m);

/// m_ib = 1 / (i + 1) for b <= i: every block reads all earlier ones alike (the authors' language
/// layer starts from it).
/// \throws option_error unless blocks >= 1.
template <Accumulator A>
MixingMatrix<A> uniform_causal(Index blocks);

/// Constraint: every stored coefficient into [low, high] (vision layers: [0, 1] after each step).
/// Zeros outside a band stay.
/// \throws option_error unless low <= high.
template <Accumulator A>
void clamp(MixingMatrix<A>& m, A low, A high);

/// Constraint: clamped into [low, high], then the upper triangle dropped (language layers:
/// [1e-5, 1]).
template <Accumulator A>
void clamp_to_lower_triangle(MixingMatrix<A>& m, A low, A high);

/// Constraint: every row divided by its sum.
/// \throws option_error, before anything changes, if a row sums to 0 or not to a finite number.
template <Accumulator A>
void normalize_rows(MixingMatrix<A>& m);

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
MixingMatrix<A>::MixingMatrix(Index rows, Index cols, Index lower, Index upper)
    : cols_(cols), lower_(std::min(lower, rows)), upper_(std::min(upper, cols)) {
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
  const Index width = std::min(cols, lower_ + upper_ + 1);
  detail::checked_product("MixingMatrix", "coefficients", {rows, width});
  values_.setZero(rows, width);
}

template <Accumulator A>
template <class Derived>
MixingMatrix<A>::MixingMatrix(const Eigen::DenseBase<Derived>& coefficients)
    : MixingMatrix(banded(coefficients, coefficients.rows(), coefficients.cols())) {}

template <Accumulator A>
MixingMatrix<A> MixingMatrix<A>::banded(Index rows, Index cols, Index lower, Index upper) {
  return MixingMatrix(rows, cols, lower, upper);
}

template <Accumulator A>
template <class Derived>
MixingMatrix<A> MixingMatrix<A>::banded(const Eigen::DenseBase<Derived>& coefficients, Index lower,
                                        Index upper) {
  const Matrix<typename Derived::Scalar> values = coefficients;
  MixingMatrix m(values.rows(), values.cols(), lower, upper);
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index b = m.first(i); b < m.last(i); ++b) {
      m.values_(i, b - m.first(i)) = static_cast<A>(values(i, b));
    }
  }
  return m;
}

template <Accumulator A>
A& MixingMatrix<A>::at(Index i, Index b) {
  if (i < 0 || i >= rows() || b < first(i) || b >= last(i)) {
    detail::fail_option(
        "MixingMatrix::at", "position", "is " + detail::shape_text({i, b}),
        "a place inside the band of a " + detail::shape_text({rows(), cols()}) + " matrix");
  }
  return values_(i, b - first(i));
}

template <Accumulator A>
Matrix<A> MixingMatrix<A>::dense() const {
  Matrix<A> all(rows(), cols());
  for (Index i = 0; i < rows(); ++i) {
    for (Index b = 0; b < cols(); ++b) all(i, b) = (*this)(i, b);
  }
  return all;
}

template <Accumulator A>
template <class F>
void MixingMatrix<A>::for_each(F&& f) {
  for (Index i = 0; i < rows(); ++i) {
    for (Index j = 0; j < last(i) - first(i); ++j) f(values_(i, j));
  }
}

template <Accumulator A>
MixingMatrix<A> lower_triangle(const MixingMatrix<A>& m) {
  auto lower = MixingMatrix<A>::banded(m.rows(), m.cols(), m.rows(), 0);
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index b = lower.first(i); b < lower.last(i); ++b) lower.at(i, b) = m(i, b);
  }
  return lower;
}

template <Accumulator A>
MixingMatrix<A> uniform_causal(Index blocks) {
  auto m = MixingMatrix<A>::banded(blocks, blocks, std::max<Index>(blocks, 0), 0);
  for (Index i = 0; i < blocks; ++i) {
    for (Index b = 0; b <= i; ++b) m.at(i, b) = A(1) / static_cast<A>(i + 1);
  }
  return m;
}

template <Accumulator A>
void clamp(MixingMatrix<A>& m, A low, A high) {
  if (!(low <= high)) {
    detail::fail_option("clamp", "low", "is " + std::to_string(low),
                        "at most high, which is " + std::to_string(high));
  }
  m.for_each([low, high](A& c) { c = std::clamp(c, low, high); });
}

template <Accumulator A>
void clamp_to_lower_triangle(MixingMatrix<A>& m, A low, A high) {
  clamp(m, low, high);
  m = lower_triangle(m);
}

template <Accumulator A>
void normalize_rows(MixingMatrix<A>& m) {
  const auto row_sum = [&m](Index i) {
    A total = 0;
    for (Index b = m.first(i); b < m.last(i); ++b) total += m(i, b);
    return total;
  };
  for (Index i = 0; i < m.rows(); ++i) {
    const A total = row_sum(i);
    if (total == 0 || !std::isfinite(total)) {
      detail::fail_option("normalize_rows", "m",
                          "has row " + std::to_string(i) + " with sum " + std::to_string(total),
                          "rows with a finite sum other than 0");
    }
  }
  for (Index i = 0; i < m.rows(); ++i) {
    const A total = row_sum(i);
    for (Index b = m.first(i); b < m.last(i); ++b) m.at(i, b) /= total;
  }
}

namespace detail {

/// Throws unless m is [rows, cols]; without query or key blocks there is nothing to mix.
template <Accumulator A>
void expect_mixing(const char* function, const MixingMatrix<A>& m, Index rows, Index cols) {
  if ((rows > 0 && m.rows() != rows) || (cols > 0 && m.cols() != cols)) {
    fail_shape(function, "mixing", "has shape " + shape_text({m.rows(), m.cols()}),
               shape_text({rows, cols}) + " (query blocks, key blocks)");
  }
}

/// Throws unless m has at least [rows, cols] coefficients.
template <Accumulator A>
void expect_leading_mixing(const char* function, const MixingMatrix<A>& m, Index rows, Index cols) {
  if (m.rows() < rows || m.cols() < cols) {
    fail_shape(function, "mixing", "has shape " + shape_text({m.rows(), m.cols()}),
               "at least " + shape_text({rows, cols}) + " for the blocks of the sequence");
  }
}

}  // namespace detail
}  // namespace mhla::inline MHLA_TARGET
