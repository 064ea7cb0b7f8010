#pragma once

/// \file
/// Stage 4 of 5: the mixing matrix m [Mq,Mk]. Query block i reads key block b with weight m_ib.
/// All heads share one matrix, or each head has its own. This file has an owner of coefficients,
/// and the constraints of training. Forms read a MixingView; initial values are in locality.hpp.
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

/// A mixing matrix, or one per head of a common pattern, that owns its coefficients. Converts
/// implicitly to a MixingView.
template <Accumulator A>
class MixingMatrix {
 public:
  /// All coefficients of a dense matrix [Mq,Mk], any real values.
  /// \throws option_error if it is empty.
  template <class Derived>
  explicit MixingMatrix(const Eigen::DenseBase<Derived>& coefficients)
      : MixingMatrix(banded(coefficients, coefficients.rows(), coefficients.cols())) {}
  /// Copies the matrices of a view and their pattern.
  /// \throws option_error if it is absent.
  explicit MixingMatrix(const MixingView<const A>& m);
  /// Zeros in a pattern, to be set through `at`, of_head(h).at if each head has a matrix.
  /// \throws option_error unless heads >= 1.
  explicit MixingMatrix(const Pattern& pattern, Index heads = 1);

  /// Zeros in the band i - lower <= b <= i + upper of an [Mq,Mk] matrix.
  /// \throws option_error if the matrix is empty or a bandwidth is negative.
  static MixingMatrix banded(Index rows, Index cols, Index lower, Index upper) {
    return MixingMatrix(Pattern(rows, cols, lower, upper));
  }
  /// Keeps the band i - lower <= b <= i + upper of a dense matrix and drops the rest.
  template <class Derived>
  static MixingMatrix banded(const Eigen::DenseBase<Derived>& coefficients, Index lower,
                             Index upper);
  /// Stores the coefficients of m that are nonzero in any head as lists of blocks. The cost of
  /// forms and gradients grows with their number.
  static MixingMatrix sparse(const MixingView<const A>& m);

  MixingView<A> view() { return {values_.data(), pattern_, heads(), pattern_.size()}; }
  MixingView<const A> view() const { return {values_.data(), pattern_, heads(), pattern_.size()}; }
  operator MixingView<A>() MHLA_LIFETIMEBOUND { return view(); }              // NOLINT
  operator MixingView<const A>() const MHLA_LIFETIMEBOUND { return view(); }  // NOLINT

  const Pattern& pattern() const { return pattern_; }
  Index rows() const { return pattern_.rows(); }
  Index cols() const { return pattern_.cols(); }
  Index heads() const { return values_.rows(); }  ///< H, or 1 if all heads share a matrix
  /// The matrix of head h, or the matrix that all heads share.
  MixingView<A> of_head(Index h) { return {values_.data() + place(h), pattern_}; }
  MixingView<const A> of_head(Index h) const { return {values_.data() + place(h), pattern_}; }
  // One matrix only:
  A operator()(Index i, Index b) const { return view()(i, b); }
  A& at(Index i, Index b) { return view().at(i, b); }
  Matrix<A> dense() const { return view().dense(); }
  std::span<A> storage() { return view().storage(); }
  std::span<const A> storage() const { return view().storage(); }

 private:
  Index place(Index h) const { return heads() == 1 ? 0 : h * pattern_.size(); }

  Pattern pattern_;
  Matrix<A> values_;  // [heads, max(1, pattern.size())]: data() is not null even if empty
};

/// A copy of m for each head: initial values where heads learn their own matrices.  // [H,Mq,Mk]
/// \throws option_error unless heads >= 1; shape_error if m has several matrices.
template <Accumulator A>
MixingMatrix<A> per_head(const MixingMatrix<A>& m, Index heads);

/// Zeros in the pattern and with the heads of m, such as memory for its gradient.
/// \throws option_error if a view is absent.
template <class A>
MixingMatrix<std::remove_const_t<A>> zeros_like(const MixingView<A>& m);
template <Accumulator A>
MixingMatrix<A> zeros_like(const MixingMatrix<A>& m) {
  return zeros_like(m.view());
}

/// Loads the mixing matrix of a checkpoint: the tensor `name`, [Mq,Mk] or with trailing axes of
/// size 1. Vision layers have [M,M,1,1], language layers [M,M,1,1,1,1]. A tensor [H,Mq,Mk] with Mk
/// above 1 is a matrix per head. All coefficients are kept, including those above the diagonal.
/// \throws shape_error if the tensor is missing or has another shape; option_error if it is empty;
///     the errors of the file for a tensor that A cannot hold.
template <Accumulator A = float, TensorFile<A> F>
MixingMatrix<A> load_mixing(const F& file, const std::string& name);

/// The lower triangle of m, stored as a band per head: all coefficients that the causal form reads.
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

/// The coefficients of m in a pattern, and zeros where m has none.
template <Accumulator A>
MixingMatrix<A> in_pattern(const MixingView<const A>& m, const Pattern& pattern) {
  MixingMatrix<A> held(pattern, m.heads());
  held.view().for_each_place([&m](Index h, Index i, Index b, A& c) { c = m.of_head(h)(i, b); });
  return held;
}

}  // namespace detail

template <Accumulator A>
MixingMatrix<A>::MixingMatrix(const Pattern& pattern, Index heads) : pattern_(pattern) {
  if (heads < 1) {
    detail::fail_option("MixingMatrix", "heads", "are " + std::to_string(heads), "at least 1");
  }
  const Index size = std::max<Index>(1, pattern.size());
  detail::checked_product("MixingMatrix", "coefficients", {heads, size});
  values_.setZero(heads, size);
}

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
  const auto in_any_head = [&m](Index i, Index b) {
    bool any = false;
    for (Index h = 0; h < m.heads(); ++h) any = any || m.of_head(h)(i, b) != 0;
    return any;
  };
  std::vector<std::vector<Index>> lists(static_cast<std::size_t>(m.rows()));
  for (Index i = 0; i < m.rows(); ++i) {
    m.for_each_in_row(i, [&](Index b, A) {
      if (in_any_head(i, b)) lists[static_cast<std::size_t>(i)].push_back(b);
    });
  }
  return detail::in_pattern(m, Pattern(m.cols(), lists));
}

template <Accumulator A>
MixingMatrix<A>::MixingMatrix(const MixingView<const A>& m)
    : MixingMatrix(detail::expect_present("MixingMatrix", m), m.heads()) {
  for (Index h = 0; h < heads(); ++h) {
    std::copy_n(m.of_head(h).storage().data(), pattern_.size(), of_head(h).storage().data());
  }
}

template <Accumulator A>
MixingMatrix<A> per_head(const MixingMatrix<A>& m, Index heads) {
  detail::expect_shared("per_head", "m", m.heads());
  MixingMatrix<A> all(m.pattern(), heads);
  all.view().for_each_place([&m](Index, Index i, Index b, A& c) { c = m(i, b); });
  return all;
}

template <class A>
MixingMatrix<std::remove_const_t<A>> zeros_like(const MixingView<A>& m) {
  return MixingMatrix<std::remove_const_t<A>>(detail::expect_present("zeros_like", m), m.heads());
}

template <Accumulator A, TensorFile<A> F>
MixingMatrix<A> load_mixing(const F& file, const std::string& name) {
  const auto& tensors = file.tensors();
  const auto found = tensors.find(name);
  const auto fail = [&name](const std::string& got) {
    detail::fail_shape("load_mixing", "file", got + name,
                       "a tensor [Mq, Mk], [Mq, Mk, 1, ...] or [H, Mq, Mk]");
  };
  if (found == tensors.end()) fail("has no tensor ");
  const std::vector<Index>& shape = found->second.shape;
  const bool matrix = shape.size() >= 2 && std::all_of(shape.begin() + 2, shape.end(),
                                                       [](Index size) { return size == 1; });
  if (!matrix && shape.size() != 3) fail("has shape " + detail::shape_text(shape) + " for ");
  MixingMatrix<A> m = matrix ? MixingMatrix<A>(Pattern(shape[0], shape[1]))
                             : MixingMatrix<A>(Pattern(shape[1], shape[2]), shape[0]);
  file.copy_to(name, m.storage());
  return m;
}

template <Accumulator A>
MixingMatrix<A> lower_triangle(const MixingMatrix<A>& m) {
  return detail::in_pattern(m.view(), Pattern(m.rows(), m.cols(), m.rows(), 0));
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
  m.for_each_place([](Index, Index i, Index b, A& c) { c = b > i ? 0 : c; });
}

template <Accumulator A>
void normalize_rows(MixingView<A> m) {
  const auto row_sum = [](const MixingView<A>& of, Index i, A total = 0) {
    of.for_each_in_row(i, [&](Index, A c) { total += c; });
    return total;
  };
  const auto for_each_row = [&m](auto&& f) {
    for (Index h = 0; h < m.heads(); ++h) {
      for (Index i = 0; i < m.rows(); ++i) f(m.of_head(h), i, h);
    }
  };
  for_each_row([&](const MixingView<A>& of, Index i, Index h) {
    const A total = row_sum(of, i);
    if (total == 0 || !std::isfinite(total)) {
      const std::string head = m.heads() > 1 ? " of head " + std::to_string(h) : "";
      detail::fail_option(
          "normalize_rows", "m",
          "has row " + std::to_string(i) + head + " with sum " + std::to_string(total),
          "rows with a finite sum other than 0");
    }
  });
  for_each_row([&](const MixingView<A>& of, Index i, Index) {
    of.for_each_in_row(i, [total = row_sum(of, i)](Index, A& c) { c /= total; });
  });
}

}  // namespace MHLA_TARGET
}  // namespace mhla
