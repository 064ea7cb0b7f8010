#pragma once

/// \file
/// Stage 4 of 5: the mixing matrix m [Mq,Mk]. Query block i reads key block b with weight m_ib.
/// All heads share one matrix, or each head has its own, or each head of every sequence. This file
/// has an owner of coefficients. Forms read a MixingView. Initial values are in locality.hpp, the
/// constraints of training in mixing_constraints.hpp. Source: arXiv:2601.07832, section 4.2.

#include <algorithm>
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
#include "mhla/core/tensor_file.hpp"
#include "mhla/policy/mixing_view.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A mixing matrix, or several of a common pattern, that owns its coefficients. Converts implicitly
/// to a MixingView.
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
  /// Zeros in a pattern, to be set through `at`, or matrix(n).at if there are several.
  /// \throws option_error unless heads >= 1 and sequences >= 1.
  explicit MixingMatrix(const Pattern& pattern, Index heads = 1, Index sequences = 1);

  /// Zeros in the band i - lower <= b <= i + upper of an [Mq,Mk] matrix.
  /// \throws option_error if the matrix is empty or a bandwidth is negative.
  static MixingMatrix banded(Index rows, Index cols, Index lower, Index upper) {
    return MixingMatrix(Pattern(rows, cols, lower, upper));
  }
  /// Keeps the band i - lower <= b <= i + upper of a dense matrix and drops the rest.
  template <class Derived>
  static MixingMatrix banded(const Eigen::DenseBase<Derived>& coefficients, Index lower,
                             Index upper);
  /// Stores the coefficients of m that are nonzero in any matrix as lists of blocks. The cost of
  /// forms and gradients grows with their number.
  static MixingMatrix sparse(const MixingView<const A>& m);

  MixingView<A> view() { return view_of<A>(values_.data()); }
  MixingView<const A> view() const { return view_of<const A>(values_.data()); }
  operator MixingView<A>() MHLA_LIFETIMEBOUND { return view(); }              // NOLINT
  operator MixingView<const A>() const MHLA_LIFETIMEBOUND { return view(); }  // NOLINT

  const Pattern& pattern() const { return pattern_; }
  Index rows() const { return pattern_.rows(); }
  Index cols() const { return pattern_.cols(); }
  // Numbers of matrices, as in MixingView:
  Index sequences() const { return values_.rows() / heads_; }
  Index heads() const { return heads_; }
  Index matrices() const { return values_.rows(); }
  MixingView<A> of_sequence(Index s) { return view().of_sequence(s); }
  MixingView<const A> of_sequence(Index s) const { return view().of_sequence(s); }
  MixingView<A> of_head(Index h) { return view().of_head(h); }
  MixingView<const A> of_head(Index h) const { return view().of_head(h); }
  MixingView<A> matrix(Index n) { return {values_.data() + n * pattern_.size(), pattern_}; }
  MixingView<const A> matrix(Index n) const {
    return {values_.data() + n * pattern_.size(), pattern_};
  }
  // One matrix only:
  A operator()(Index i, Index b) const { return view()(i, b); }
  A& at(Index i, Index b) { return view().at(i, b); }
  Matrix<A> dense() const { return view().dense(); }
  std::span<A> storage() { return view().storage(); }
  std::span<const A> storage() const { return view().storage(); }

 private:
  template <class N>
  MixingView<N> view_of(N* data) const {
    return {data, pattern_, heads(), pattern_.size(), sequences(), heads() * pattern_.size()};
  }

  Pattern pattern_;
  Index heads_;
  Matrix<A> values_;  // [matrices, max(1, pattern.size())]: data() is not null even if empty
};

/// A copy of m for each head: initial values where heads learn their own matrices.  // [H,Mq,Mk]
/// \throws option_error unless heads >= 1; shape_error if m has several matrices.
template <Accumulator A>
MixingMatrix<A> per_head(const MixingMatrix<A>& m, Index heads);

/// Zeros in the pattern and the number of matrices of m, such as memory for its gradient.
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

/// The lower triangle of m, stored as a band: all coefficients that the causal form reads.
template <Accumulator A>
MixingMatrix<A> lower_triangle(const MixingMatrix<A>& m);

/// The matrix m_ib = 1 / (i + 1) for b <= i: initial values of the authors' language layer.
/// \throws option_error unless blocks >= 1.
template <Accumulator A = float>
MixingMatrix<A> uniform_causal(Index blocks);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Returns the pattern of a view. Throws if the view is absent.
template <class A>
const Pattern& expect_present(const char* function, const char* argument, const MixingView<A>& m) {
  if (m.absent()) fail_option(function, argument, "is absent", "a view of coefficients");
  return m.pattern();
}

/// The coefficients of m in a pattern, and zeros where m has none.
template <Accumulator A>
MixingMatrix<A> in_pattern(const MixingView<const A>& m, const Pattern& pattern) {
  MixingMatrix<A> held(pattern, m.heads(), m.sequences());
  held.view().for_each_place([&m](Index n, Index i, Index b, A& c) { c = m.matrix(n)(i, b); });
  return held;
}

}  // namespace detail

template <Accumulator A>
MixingMatrix<A>::MixingMatrix(const Pattern& pattern, Index heads, Index sequences)
    : pattern_(pattern), heads_(heads) {
  for (const auto& [name, count] : {std::pair{"heads", heads}, {"sequences", sequences}}) {
    if (count < 1) {
      detail::fail_option("MixingMatrix", name, "are " + std::to_string(count), "at least 1");
    }
  }
  const Index size = std::max<Index>(1, pattern.size());
  detail::checked_product("MixingMatrix", "coefficients", {sequences, heads, size});
  values_.setZero(sequences * heads, size);
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
  detail::expect_present("MixingMatrix::sparse", "m", m);
  const auto in_any = [&m](Index i, Index b) {
    bool any = false;
    for (Index n = 0; n < m.matrices(); ++n) any = any || m.matrix(n)(i, b) != 0;
    return any;
  };
  std::vector<std::vector<Index>> lists(static_cast<std::size_t>(m.rows()));
  for (Index i = 0; i < m.rows(); ++i) {
    m.matrix(0).for_each_in_row(i, [&](Index b, A) {
      if (in_any(i, b)) lists[static_cast<std::size_t>(i)].push_back(b);
    });
  }
  return detail::in_pattern(m, Pattern(m.cols(), lists));
}

template <Accumulator A>
MixingMatrix<A>::MixingMatrix(const MixingView<const A>& m)
    : MixingMatrix(detail::expect_present("MixingMatrix", "m", m), m.heads(), m.sequences()) {
  for (Index n = 0; n < matrices(); ++n) {
    std::copy_n(m.matrix(n).storage().data(), pattern_.size(), matrix(n).storage().data());
  }
}

template <Accumulator A>
MixingMatrix<A> per_head(const MixingMatrix<A>& m, Index heads) {
  detail::expect_shared("per_head", "m", m.matrices());
  MixingMatrix<A> all(m.pattern(), heads);
  all.view().for_each_place([&m](Index, Index i, Index b, A& c) { c = m(i, b); });
  return all;
}

template <class A>
MixingMatrix<std::remove_const_t<A>> zeros_like(const MixingView<A>& m) {
  return MixingMatrix<std::remove_const_t<A>>(detail::expect_present("zeros_like", "m", m),
                                              m.heads(), m.sequences());
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

}  // namespace MHLA_TARGET
}  // namespace mhla
