#pragma once

/// \file
/// Stage 4 of 5: the mixing matrix m [Mq,Mk]: how much query block i reads of key block b.
///
/// One matrix serves all heads and all items of a batch. Coefficients are any real numbers: the
/// paper keeps them nonnegative with rows that sum to 1, trained weights need not. A banded matrix
/// stores and mixes only a band, so cost grows with M and not with M^2. Forms read a MixingView, so
/// that the coefficients may lie in a model's flat row of parameters; MixingMatrix owns them.
/// Initial values by distance between blocks are in locality.hpp.
/// Source: arXiv:2601.07832, section 4.2.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <span>
#include <string>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The places i - lower <= b <= i + upper of a matrix [Mq,Mk], and how they lie in memory: row i
/// has width() numbers, the first of which is column first(i). Numbers behind column last(i) - 1
/// are no coefficients and stay 0.
class Band {
 public:
  Band() = default;
  /// \throws option_error if the matrix is empty or a bandwidth is negative.
  Band(Index rows, Index cols, Index lower, Index upper);
  /// All places of a matrix.
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
  /// Coefficients of the widest row: how far rows lie apart in memory.
  Index width() const { return std::min(cols_, lower_ + upper_ + 1); }
  /// Numbers of memory.
  Index size() const { return rows_ * width(); }
  friend bool operator==(const Band&, const Band&) = default;

 private:
  Index rows_ = 0, cols_ = 0, lower_ = 0, upper_ = 0;
};

/// A dense or banded mixing matrix somewhere in memory, or its gradient. Zeros outside the band are
/// skipped, not multiplied. Owns nothing.
template <class A>
class MixingView {
 public:
  /// Absent, as an optional gradient that is not wanted.
  constexpr MixingView() = default;
  /// \param data  band.size() numbers
  MixingView(A* data, const Band& band) : data_(data), band_(band) {}
  template <std::same_as<const A> C>
  requires(!std::is_const_v<A>) operator MixingView<C>() const {  // NOLINT
    return {data_, band_};
  }

  bool absent() const { return data_ == nullptr; }
  const Band& band() const { return band_; }
  Index rows() const { return band_.rows(); }  ///< Mq, query blocks
  Index cols() const { return band_.cols(); }  ///< Mk, key blocks
  /// All numbers of memory, for optimisers and files.
  std::span<A> storage() const { return {data_, static_cast<std::size_t>(band_.size())}; }
  /// Where column 0 of row i would lie: element b of it is m_ib for first(i) <= b < last(i).
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

/// A mixing matrix that owns its coefficients. A MixingView of it is implicit.
template <Accumulator A>
class MixingMatrix {
 public:
  /// All coefficients of a dense matrix [Mq,Mk], any real values.
  /// \throws option_error if it is empty.
  template <class Derived>
  explicit MixingMatrix(const Eigen::DenseBase<Derived>& coefficients)
      : MixingMatrix(banded(coefficients, coefficients.rows(), coefficients.cols())) {}
  /// Zeros in a band, to be filled by `at`.
  explicit MixingMatrix(const Band& band) : band_(band), values_(Matrix<A>::Zero(1, band.size())) {}

  /// Zeros in the band i - lower <= b <= i + upper of an [Mq,Mk] matrix.
  /// \throws option_error if the matrix is empty or a bandwidth is negative.
  static MixingMatrix banded(Index rows, Index cols, Index lower, Index upper) {
    return MixingMatrix(Band(rows, cols, lower, upper));
  }
  /// The band i - lower <= b <= i + upper of a dense matrix; what lies outside is dropped.
  template <class Derived>
  static MixingMatrix banded(const Eigen::DenseBase<Derived>& coefficients, Index lower,
                             Index upper);

  MixingView<A> view() { return {values_.data(), band_}; }
  MixingView<const A> view() const { return {values_.data(), band_}; }
  operator MixingView<A>() { return view(); }              // NOLINT(google-explicit-constructor)
  operator MixingView<const A>() const { return view(); }  // NOLINT(google-explicit-constructor)

  const Band& band() const { return band_; }
  Index rows() const { return band_.rows(); }
  Index cols() const { return band_.cols(); }
  A operator()(Index i, Index b) const { return view()(i, b); }
  A& at(Index i, Index b) { return view().at(i, b); }
  Matrix<A> dense() const { return view().dense(); }
  std::span<A> storage() { return view().storage(); }
  std::span<const A> storage() const { return view().storage(); }

 private:
  Band band_;
  Matrix<A> values_;  // [1, band.size()]
};

/// The lower triangle of m, stored as a band: what the causal form reads of it.
template <Accumulator A>
MixingMatrix<A> lower_triangle(const MixingMatrix<A>& m);

/// m_ib = 1 / (i + 1) for b <= i: every block reads all earlier ones alike (the authors' language
/// layer starts from it).
/// \throws option_error unless blocks >= 1.
template <Accumulator A = float>
MixingMatrix<A> uniform_causal(Index blocks);

/// Constraint: every stored coefficient into [low, high] (vision layers: [0, 1] after each step).
/// Zeros outside a band stay.
/// \throws option_error unless low <= high.
template <Accumulator A>
void clamp(MixingView<A> m, std::type_identity_t<A> low, std::type_identity_t<A> high);

/// Constraint: clamped into [low, high], those above the diagonal set to 0 (language layers:
/// [1e-5, 1]).
template <Accumulator A>
void clamp_to_lower_triangle(MixingView<A> m, std::type_identity_t<A> low,
                             std::type_identity_t<A> high);

/// Constraint: every row divided by its sum.
/// \throws option_error, before anything changes, if a row sums to 0 or not to a finite number.
template <Accumulator A>
void normalize_rows(MixingView<A> m);

template <Accumulator A>
void clamp(MixingMatrix<A>& m, std::type_identity_t<A> low, std::type_identity_t<A> high) {
  clamp(m.view(), low, high);
}
template <Accumulator A>
void clamp_to_lower_triangle(MixingMatrix<A>& m, std::type_identity_t<A> low,
                             std::type_identity_t<A> high) {
  clamp_to_lower_triangle(m.view(), low, high);
}
template <Accumulator A>
void normalize_rows(MixingMatrix<A>& m) {
  normalize_rows(m.view());
}

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

template <Accumulator A>
template <class Derived>
MixingMatrix<A> MixingMatrix<A>::banded(const Eigen::DenseBase<Derived>& coefficients, Index lower,
                                        Index upper) {
  const Matrix<typename Derived::Scalar> values = coefficients;
  MixingMatrix m(Band(values.rows(), values.cols(), lower, upper));
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index b = m.band_.first(i); b < m.band_.last(i); ++b) {
      m.at(i, b) = static_cast<A>(values(i, b));
    }
  }
  return m;
}

template <Accumulator A>
MixingMatrix<A> lower_triangle(const MixingMatrix<A>& m) {
  auto lower = MixingMatrix<A>::banded(m.rows(), m.cols(), m.rows(), 0);
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index b = 0; b < lower.band().last(i); ++b) lower.at(i, b) = m(i, b);
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
void clamp(MixingView<A> m, std::type_identity_t<A> low, std::type_identity_t<A> high) {
  if (!(low <= high)) {
    detail::fail_option("clamp", "low", "is " + std::to_string(low),
                        "at most high, which is " + std::to_string(high));
  }
  m.for_each([low, high](A& c) { c = std::clamp(c, low, high); });
}

template <Accumulator A>
void clamp_to_lower_triangle(MixingView<A> m, std::type_identity_t<A> low,
                             std::type_identity_t<A> high) {
  clamp(m, low, high);
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index b = std::max(i + 1, m.band().first(i)); b < m.band().last(i); ++b) m.at(i, b) = 0;
  }
}

template <Accumulator A>
void normalize_rows(MixingView<A> m) {
  const auto row_sum = [&m](Index i) {
    A total = 0;
    for (Index b = m.band().first(i); b < m.band().last(i); ++b) total += m(i, b);
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
    for (Index b = m.band().first(i); b < m.band().last(i); ++b) m.at(i, b) /= total;
  }
}

namespace detail {

/// Throws unless m is [rows, cols]; without query or key blocks there is nothing to mix.
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
