#pragma once

/// \file
/// Stage 4 of 5: the mixing matrix m [Mq,Mk]. Query block i reads key block b with weight m_ib.
/// This file has a matrix that owns its coefficients, and the constraints of training. Forms read a
/// MixingView; initial values are in locality.hpp.
/// Source: arXiv:2601.07832, section 4.2.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor_file.hpp"
#include "mhla/policy/mixing_view.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A mixing matrix that owns its coefficients. Converts implicitly to a MixingView.
template <Accumulator A>
class MixingMatrix {
 public:
  /// All coefficients of a dense matrix [Mq,Mk], any real values.
  /// \throws option_error if it is empty.
  template <class Derived>
  explicit MixingMatrix(const Eigen::DenseBase<Derived>& coefficients)
      : MixingMatrix(banded(coefficients, coefficients.rows(), coefficients.cols())) {}
  /// Copies a view and its pattern.
  /// \throws option_error if it is absent.
  explicit MixingMatrix(const MixingView<const A>& m);
  /// Zeros in a pattern, to be set through `at`.
  explicit MixingMatrix(const Pattern& pattern)
      : pattern_(pattern), values_(Matrix<A>::Zero(1, std::max<Index>(1, pattern.size()))) {}

  /// Zeros in the band i - lower <= b <= i + upper of an [Mq,Mk] matrix.
  /// \throws option_error if the matrix is empty or a bandwidth is negative.
  static MixingMatrix banded(Index rows, Index cols, Index lower, Index upper) {
    return MixingMatrix(Pattern(rows, cols, lower, upper));
  }
  /// Keeps the band i - lower <= b <= i + upper of a dense matrix and drops the rest.
  template <class Derived>
  static MixingMatrix banded(const Eigen::DenseBase<Derived>& coefficients, Index lower,
                             Index upper);
  /// Stores the nonzero coefficients of m as lists of blocks. The cost of forms and gradients grows
  /// with their number.
  static MixingMatrix sparse(const MixingView<const A>& m);

  MixingView<A> view() { return {values_.data(), pattern_}; }
  MixingView<const A> view() const { return {values_.data(), pattern_}; }
  operator MixingView<A>() MHLA_LIFETIMEBOUND { return view(); }              // NOLINT
  operator MixingView<const A>() const MHLA_LIFETIMEBOUND { return view(); }  // NOLINT

  const Pattern& pattern() const { return pattern_; }
  Index rows() const { return pattern_.rows(); }
  Index cols() const { return pattern_.cols(); }
  A operator()(Index i, Index b) const { return view()(i, b); }
  A& at(Index i, Index b) { return view().at(i, b); }
  Matrix<A> dense() const { return view().dense(); }
  std::span<A> storage() { return view().storage(); }
  std::span<const A> storage() const { return view().storage(); }

 private:
  Pattern pattern_;
  Matrix<A> values_;  // [1, max(1, pattern.size())]: data() is not null even if empty
};

/// Zeros in the pattern of m, such as memory for its gradient.
/// \throws option_error if a view is absent.
template <class A>
MixingMatrix<std::remove_const_t<A>> zeros_like(const MixingView<A>& m);
template <Accumulator A>
MixingMatrix<A> zeros_like(const MixingMatrix<A>& m) {
  return zeros_like(m.view());
}

/// Loads the mixing matrix of a checkpoint: the tensor `name`, [Mq,Mk] or with trailing axes of
/// size 1. Vision layers have [M,M,1,1], language layers [M,M,1,1,1,1]. All coefficients are kept,
/// including those above the diagonal.
/// \throws shape_error if the tensor is missing or has another shape; option_error if it is empty;
///     the errors of the file for a tensor that A cannot hold.
template <Accumulator A = float, TensorFile<A> F>
MixingMatrix<A> load_mixing(const F& file, const std::string& name);

/// The lower triangle of m, stored as a band: all coefficients that the causal form reads.
template <Accumulator A>
MixingMatrix<A> lower_triangle(const MixingMatrix<A>& m);

/// The matrix m_ib = 1 / (i + 1) for b <= i: initial values of the authors' language layer.
/// \throws option_error unless blocks >= 1.
template <Accumulator A = float>
MixingMatrix<A> uniform_causal(Index blocks);

/// Clamps every stored coefficient to [low, high] (vision layers: [0, 1] after each step). Zeros
/// outside a pattern stay.
/// \throws option_error unless low <= high.
template <Accumulator A>
void clamp(MixingView<A> m, std::type_identity_t<A> low, std::type_identity_t<A> high);

/// Clamps to [low, high] and zeroes coefficients above the diagonal (language layers: [1e-5, 1]).
template <Accumulator A>
void clamp_to_lower_triangle(MixingView<A> m, std::type_identity_t<A> low,
                             std::type_identity_t<A> high);

/// Divides every row by its sum.
/// \throws option_error, before any change, if the sum of a row is 0 or not finite.
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

namespace detail {

/// Returns the pattern of a view. Throws if the view is absent.
template <class A>
const Pattern& expect_present(const char* function, const MixingView<A>& m) {
  if (m.absent()) fail_option(function, "m", "is absent", "a view of coefficients");
  return m.pattern();
}

}  // namespace detail

template <Accumulator A>
template <class Derived>
MixingMatrix<A> MixingMatrix<A>::banded(const Eigen::DenseBase<Derived>& coefficients, Index lower,
                                        Index upper) {
  const Matrix<typename Derived::Scalar> values = coefficients;
  MixingMatrix m(Pattern(values.rows(), values.cols(), lower, upper));
  for (Index i = 0; i < m.rows(); ++i) {
    m.view().for_each_in_row(i, [&](Index b, A& c) { c = static_cast<A>(values(i, b)); });
  }
  return m;
}

template <Accumulator A>
MixingMatrix<A> MixingMatrix<A>::sparse(const MixingView<const A>& m) {
  detail::expect_present("MixingMatrix::sparse", m);
  std::vector<std::vector<Index>> lists(static_cast<std::size_t>(m.rows()));
  for (Index i = 0; i < m.rows(); ++i) {
    m.for_each_in_row(i, [&](Index b, A c) {
      if (c != 0) lists[static_cast<std::size_t>(i)].push_back(b);
    });
  }
  MixingMatrix held(Pattern(m.cols(), lists));
  for (Index i = 0; i < m.rows(); ++i) {
    held.view().for_each_in_row(i, [&](Index b, A& c) { c = m(i, b); });
  }
  return held;
}

template <Accumulator A>
MixingMatrix<A>::MixingMatrix(const MixingView<const A>& m)
    : MixingMatrix(detail::expect_present("MixingMatrix", m)) {
  const std::span<const A> from = m.storage();
  std::copy(from.begin(), from.end(), values_.data());
}

template <class A>
MixingMatrix<std::remove_const_t<A>> zeros_like(const MixingView<A>& m) {
  return MixingMatrix<std::remove_const_t<A>>(detail::expect_present("zeros_like", m));
}

template <Accumulator A, TensorFile<A> F>
MixingMatrix<A> load_mixing(const F& file, const std::string& name) {
  const auto& tensors = file.tensors();
  const auto found = tensors.find(name);
  const auto fail = [&name](const std::string& got) {
    detail::fail_shape("load_mixing", "file", got + name, "a tensor [Mq, Mk] or [Mq, Mk, 1, ...]");
  };
  if (found == tensors.end()) fail("has no tensor ");
  const std::vector<Index>& shape = found->second.shape;
  const bool matrix = shape.size() >= 2 && std::all_of(shape.begin() + 2, shape.end(),
                                                       [](Index size) { return size == 1; });
  if (!matrix) fail("has shape " + detail::shape_text(shape) + " for ");
  MixingMatrix<A> m(Pattern(shape[0], shape[1]));
  file.copy_to(name, m.storage());
  return m;
}

template <Accumulator A>
MixingMatrix<A> lower_triangle(const MixingMatrix<A>& m) {
  auto lower = MixingMatrix<A>::banded(m.rows(), m.cols(), m.rows(), 0);
  for (Index i = 0; i < m.rows(); ++i) {
    lower.view().for_each_in_row(i, [&](Index b, A& c) { c = m(i, b); });
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
    m.for_each_in_row(i, [&](Index b, A& c) { c = b > i ? 0 : c; });
  }
}

template <Accumulator A>
void normalize_rows(MixingView<A> m) {
  const auto row_sum = [&m](Index i) {
    A total = 0;
    m.for_each_in_row(i, [&](Index, A c) { total += c; });
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
    m.for_each_in_row(i, [&](Index, A& c) { c /= total; });
  }
}

}  // namespace MHLA_TARGET
}  // namespace mhla
