#pragma once

/// \file
/// Stage 4 of 5: a view of a mixing matrix m [Mq,Mk], dense, banded or sparse, or of its gradient.
///
/// All heads share one matrix, or each head has a matrix [H,Mq,Mk], for all sequences of a batch.
/// Sequences may also have matrices apart [B,H,Mq,Mk], such as gated ones (gate.hpp).
/// Coefficients are any real numbers. The paper keeps them nonnegative with rows that sum to 1;
/// trained weights need not satisfy this. A matrix with a pattern (pattern.hpp) stores and mixes
/// its coefficients alone. mixing_matrix.hpp has a matrix that owns its coefficients.
/// Cost of several matrices: their memory, and no more work.
/// Source: arXiv:2601.07832, section 4.2.

#include <algorithm>
#include <concepts>
#include <span>
#include <string>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/pattern.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

/// Throws unless there is a single matrix.
inline void expect_shared(const char* function, const char* argument, Index matrices) {
  if (matrices == 1) return;
  fail_shape(function, argument, "has " + std::to_string(matrices) + " matrices",
             "one, such as matrix(0)");
}

}  // namespace detail

/// A non-owning view of a mixing matrix or of its gradient. Coefficients outside its pattern are 0.
/// Several matrices, one per head or one per sequence and head, have a common pattern.
template <class A>
class MixingView {
  using Dense = std::conditional_t<std::is_const_v<A>, const Matrix<std::remove_const_t<A>>,
                                   Matrix<std::remove_const_t<A>>>;

 public:
  /// An absent view, for an optional gradient left out.
  constexpr MixingView() = default;
  /// A matrix that all heads share.
  /// \param data  pattern.size() numbers
  MixingView(A* data, const Pattern& pattern) : data_(data), pattern_(pattern) {}
  /// A matrix per head, or one per sequence and head.
  /// \param head_stride      numbers from a head's matrix to the next, pattern.size() if they are
  ///     contiguous; matrices may overlap if they are only read
  /// \param sequence_stride  numbers from a sequence's matrices to the next
  /// \throws option_error unless heads >= 1, sequences >= 1 and the strides are >= 0.
  MixingView(A* data, const Pattern& pattern, Index heads, Index head_stride, Index sequences = 1,
             Index sequence_stride = 0);
  /// All coefficients of a matrix, in its memory.
  /// \throws option_error if it is empty.
  explicit MixingView(Dense& m) : MixingView(m.data(), Pattern(m.rows(), m.cols())) {}
  explicit MixingView(const Dense&& m) = delete;  // would dangle
  template <std::same_as<const A> C>
  requires(!std::is_const_v<A>) operator MixingView<C>() const {  // NOLINT
    return MixingView<C>(data_, pattern_, heads_, head_stride_, sequences_, sequence_stride_);
  }

  /// The coefficients of blocks in no later step than their row's (Pattern::block_causal).
  MixingView block_causal(Index step, const char* function = "block_causal") const {
    MixingView part = *this;
    part.pattern_ = pattern_.block_causal(step, function);
    return part;
  }

  /// The matrices of sequence s, or those that all sequences share.
  MixingView of_sequence(Index s) const {
    MixingView part = *this;
    part.data_ += s * sequence_stride_;
    part.sequences_ = 1;
    part.sequence_stride_ = 0;
    return part;
  }
  /// The matrix of head h, of every sequence if these differ, or the matrix that all heads share.
  MixingView of_head(Index h) const { return of_heads(h, 1, 1); }
  /// The matrices of `count` heads: first, first + step, ..., or the matrix that all heads share.
  MixingView of_heads(Index first, Index step, Index count) const {
    if (heads_ == 1) return *this;
    return {data_ + first * head_stride_, pattern_,   count,
            step * head_stride_,          sequences_, sequence_stride_};
  }
  Index sequences() const { return sequences_; }  ///< B, or 1 if all sequences share the matrices
  Index heads() const { return heads_; }          ///< H, or 1 if all heads share a matrix
  Index sequence_stride() const { return sequence_stride_; }  ///< 0 if sequences() is 1
  Index head_stride() const { return head_stride_; }          ///< 0 if heads() is 1
  Index matrices() const { return sequences_ * heads_; }
  /// Matrix n of all, the heads of a sequence side by side.
  MixingView matrix(Index n) const { return of_sequence(n / heads_).of_head(n % heads_); }

  bool absent() const { return data_ == nullptr; }
  const Pattern& pattern() const { return pattern_; }
  Index rows() const { return pattern_.rows(); }  ///< Mq, query blocks
  Index cols() const { return pattern_.cols(); }  ///< Mk, key blocks
  /// All numbers in memory, for optimisers and files: from the first matrix to the last.
  std::span<A> storage() const {
    return {data_, static_cast<std::size_t>((sequences_ - 1) * sequence_stride_ +
                                            (heads_ - 1) * head_stride_ + pattern_.size())};
  }

  /// Calls f(n, i, b, m_ib) for every coefficient of every matrix(n).
  template <class F>
  void for_each_place(F&& f) const {
    for (Index n = 0; n < matrices(); ++n) {
      const MixingView m = matrix(n);
      for (Index i = 0; i < rows(); ++i) {
        m.for_each_in_row(i, [&](Index b, A& coefficient) { f(n, i, b, coefficient); });
      }
    }
  }
  /// Calls f(coefficient) for every coefficient of every matrix.
  template <class F>
  void for_each(F&& f) const {
    for_each_place([&f](Index, Index, Index, A& coefficient) { f(coefficient); });
  }

  // Views of one matrix only:

  /// Pointer p with p[b] = m_ib for first(i) <= b < last(i). Bands only.
  A* row_from_zero(Index i) const { return data_ + i * pattern_.width() - pattern_.first(i); }

  /// Coefficient m_ib, or 0 outside the pattern.
  /// \throws shape_error if there are several matrices, as do `at` and `dense`.
  std::remove_const_t<A> operator()(Index i, Index b) const {
    detail::expect_shared("MixingView", "m", matrices());
    const Index place = pattern_.place(i, b);
    return place < 0 ? A(0) : data_[place];
  }
  /// Reference to a stored coefficient.
  /// \throws option_error outside the pattern.
  A& at(Index i, Index b) const;

  /// All coefficients, zeros included.   // [Mq,Mk]
  Matrix<std::remove_const_t<A>> dense() const;

  /// Calls f(b, m_ib) for the coefficients of row i, b ascending.
  template <class F>
  void for_each_in_row(Index i, F&& f) const {
    pattern_.for_each_in_row(i, [&](Index b, Index place) { f(b, data_[place]); });
  }

 private:
  A* data_ = nullptr;
  Pattern pattern_;
  Index heads_ = 1, head_stride_ = 0, sequences_ = 1, sequence_stride_ = 0;
};

// ------------------------------------------------------------------------------------------------

template <class A>
MixingView<A>::MixingView(A* data, const Pattern& pattern, Index heads, Index head_stride,
                          Index sequences, Index sequence_stride)
    : data_(data),
      pattern_(pattern),
      heads_(heads),
      head_stride_(heads == 1 ? 0 : head_stride),
      sequences_(sequences),
      sequence_stride_(sequences == 1 ? 0 : sequence_stride) {
  const auto expect = [&pattern](const char* name, Index count, Index stride) {
    if (count == 1) return;
    if (count < 1 || stride < 0) {
      detail::fail_option(
          "MixingView", name,
          "are " + std::to_string(count) + ", with a stride of " + std::to_string(stride),
          "at least one, and a stride >= 0");
    }
    detail::checked_product("MixingView", name, {count, std::max(stride, pattern.size())});
  };
  expect("heads", heads_, head_stride_);
  expect("sequences", sequences_, sequence_stride_);
  detail::checked_product("MixingView", "matrices", {sequences_, heads_});
}

template <class A>
A& MixingView<A>::at(Index i, Index b) const {
  detail::expect_shared("MixingView::at", "m", matrices());
  const Index place = pattern_.place(i, b);
  if (place < 0) {
    detail::fail_option(
        "MixingMatrix::at", "position", "is " + detail::shape_text({i, b}),
        "a coefficient of the pattern of a " + detail::shape_text({rows(), cols()}) + " matrix");
  }
  return data_[place];
}

template <class A>
Matrix<std::remove_const_t<A>> MixingView<A>::dense() const {
  detail::expect_shared("MixingView::dense", "m", matrices());
  Matrix<std::remove_const_t<A>> all = Matrix<std::remove_const_t<A>>::Zero(rows(), cols());
  for (Index i = 0; i < rows(); ++i) {
    for_each_in_row(i, [&](Index b, A& coefficient) { all(i, b) = coefficient; });
  }
  return all;
}

namespace detail {

/// Throws unless m is [rows, cols]. A size of 0 or less is not checked: nothing is mixed.
template <class A>
void expect_mixing(const char* function, const MixingView<A>& m, Index rows, Index cols,
                   const char* argument = "mixing") {
  if ((rows > 0 && m.rows() != rows) || (cols > 0 && m.cols() != cols)) {
    fail_shape(function, argument, "has shape " + shape_text({m.rows(), m.cols()}),
               shape_text({rows, cols}) + " (query blocks, key blocks)");
  }
  if (m.absent() && m.pattern().size() > 0) {
    fail_option(function, argument, "is null with shape " + shape_text({m.rows(), m.cols()}),
                "a pointer to coefficients");
  }
}

/// Number of matrices: "H" or "B x H".
template <class Mixing>
std::string matrices_text(const Mixing& m) {
  return (m.sequences() > 1 ? std::to_string(m.sequences()) + " x " : "") +
         std::to_string(m.heads());
}

/// Throws unless all heads share a matrix, or each head of q has one, or each head of every
/// sequence.
template <class Mixing>
void expect_mixing_of_heads(const char* function, const Mixing& m, Index sequences, Index heads) {
  if (m.sequences() == 1 && (m.heads() == 1 || m.heads() == heads)) return;
  if (m.sequences() == sequences && m.heads() == heads) return;
  const std::string shared =
      heads == 1 ? "1, for one head" : "1, or " + std::to_string(heads) + ", one per head of q";
  const std::string all = std::to_string(sequences) + " x " + std::to_string(heads) +
                          ", one per sequence and head of q";
  fail_shape(function, "mixing", "has " + matrices_text(m) + " matrices",
             sequences > 1 ? shared + ", or " + all : shared);
}

/// Throws unless m is square and serves all sequences.
template <class A>
void expect_stream_mixing(const char* function, const MixingView<A>& m) {
  if (m.sequences() > 1) {
    fail_shape(function, "mixing", "has " + matrices_text(m) + " matrices",
               "one, or one per head: a stream for each sequence");
  }
  expect_mixing(function, m, m.rows(), m.rows());
}

/// Throws unless m has at least [rows, cols] coefficients.
template <class A>
void expect_leading_mixing(const char* function, const MixingView<A>& m, Index rows, Index cols) {
  if (m.rows() < rows || m.cols() < cols) {
    fail_shape(function, "mixing", "has shape " + shape_text({m.rows(), m.cols()}),
               "at least " + shape_text({rows, cols}) + " for the blocks of the sequence");
  }
  expect_mixing(function, m, -1, -1);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
