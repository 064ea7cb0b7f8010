#pragma once

/// \file
/// The obvious Eigen program for the causal operator without maps and normaliser, as a user would
/// write it without the library: one product for mixing, triangular views for causal scores.

#include <Eigen/Core>

#include "mhla/core/matrix.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla::bench {

/// The program for one head; calls reuse the temporaries.
template <class T>
class EigenCausalProgram {
  using Stride = Eigen::OuterStride<>;
  using Rows = Eigen::Map<const Matrix<T>, 0, Stride>;

 public:
  /// \param mixing  [M,M]; only the lower triangle is read
  /// \param length  W, of M equal blocks
  EigenCausalProgram(Matrix<T> mixing, Index length, Index d, Index e, T scale)
      : mixing_(std::move(mixing)), length_(length), d_(d), e_(e), scale_(scale) {
    summaries_.resize(mixing_.rows(), d * e);
    mixed_.resize(mixing_.rows(), d * e);
    scores_.resize(length, length);
    queries_.resize(length, d);
  }

  /// \param q, k  [N,D] with rows `stride` numbers apart
  /// \param v, out  [N,E] with rows `value_stride` numbers apart
  void run(const T* q, const T* k, const T* v, T* out, Index stride, Index value_stride) {
    const auto rows = [&](const T* x, Index b) {
      return Rows(x + b * length_ * stride, length_, d_, Stride(stride));
    };
    const auto values = [&](Index b) {
      return Rows(v + b * length_ * value_stride, length_, e_, Stride(value_stride));
    };
    const Index m = mixing_.rows();
    for (Index b = 0; b < m; ++b) {
      Eigen::Map<Matrix<T>> s(summaries_.row(b).data(), d_, e_);
      s.noalias() = rows(k, b).transpose() * values(b);
    }
    mixed_.noalias() = mixing_.template triangularView<Eigen::StrictlyLower>() * summaries_;
    for (Index b = 0; b < m; ++b) {
      queries_ = scale_ * rows(q, b);
      scores_.noalias() = queries_ * rows(k, b).transpose();
      scores_ *= mixing_(b, b);
      Eigen::Map<Matrix<T>, 0, Stride> o(out + b * length_ * value_stride, length_, e_,
                                         Stride(value_stride));
      o.noalias() = queries_ * Eigen::Map<const Matrix<T>>(mixed_.row(b).data(), d_, e_);
      o.noalias() += scores_.template triangularView<Eigen::Lower>() * values(b);
    }
  }

 private:
  Matrix<T> mixing_;
  Index length_, d_, e_;
  T scale_;
  Matrix<T> summaries_, mixed_, scores_, queries_;
};

}  // namespace mhla::bench
