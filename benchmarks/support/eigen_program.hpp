#pragma once

/// \file
/// The obvious Eigen program for the bidirectional operator with Relu and KeySum. A user would
/// write it without the library: feature maps into temporaries, noalias() products per block, one
/// product for mixing.

#include <Eigen/Core>

#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/policy/partition.hpp"

namespace mhla::bench {

/// The program for one head; calls reuse the temporaries.
template <class T, Partition P>
class EigenProgram {
  using Rows = Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>;

 public:
  EigenProgram(const P& blocks, Matrix<T> mixing, Index d, Index e)
      : blocks_(blocks), mixing_(std::move(mixing)), d_(d), e_(e) {
    const Index n = blocks.tokens(), m = blocks.blocks(), w = largest_block(blocks);
    q_.resize(n, d);
    k_.resize(n, d);
    v_.resize(n, e);
    out_.resize(n, e);
    summaries_.resize(m, d * e);
    mixed_.resize(m, d * e);
    key_sums_.resize(m, d);
    mixed_key_sums_.resize(m, d);
    denominators_.resize(w);
  }

  /// \param q, k  [N,D] and v, out [N,E] with rows `stride` numbers apart
  void run(const T* q, const T* k, const T* v, T* out, Index stride) {
    // Copies the tokens of a block into consecutive rows, and maps features.
    Index row = 0;
    for (Index b = 0; b < blocks_.blocks(); ++b) {
      for (Index r = 0; r < blocks_.runs(b); ++r) {
        const Run run = blocks_.run(b, r);
        const auto rows = [&](const T* x, Index cols) {
          return Rows(x + run.begin * stride, run.length, cols, Eigen::OuterStride<>(stride));
        };
        q_.middleRows(row, run.length) = rows(q, d_).cwiseMax(T(0)).array() + T(1e-6);
        k_.middleRows(row, run.length) = rows(k, d_).cwiseMax(T(0)).array() + T(1e-6);
        v_.middleRows(row, run.length) = rows(v, e_);
        row += run.length;
      }
    }
    for_each_block([&](Index b, Index begin, Index count) {
      Eigen::Map<Matrix<T>> s(summaries_.row(b).data(), d_, e_);
      s.noalias() = k_.middleRows(begin, count).transpose() * v_.middleRows(begin, count);
      key_sums_.row(b) = k_.middleRows(begin, count).colwise().sum();
    });
    mixed_.noalias() = mixing_ * summaries_;
    mixed_key_sums_.noalias() = mixing_ * key_sums_;
    for_each_block([&](Index b, Index begin, Index count) {
      const Eigen::Map<const Matrix<T>> s(mixed_.row(b).data(), d_, e_);
      auto o = out_.middleRows(begin, count);
      o.noalias() = q_.middleRows(begin, count) * s;
      auto den = denominators_.head(count);
      den.noalias() = q_.middleRows(begin, count) * mixed_key_sums_.row(b).transpose();
      o.array().colwise() /= den.array();
    });
    row = 0;
    for (Index b = 0; b < blocks_.blocks(); ++b) {
      for (Index r = 0; r < blocks_.runs(b); ++r) {
        const Run run = blocks_.run(b, r);
        Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>>(out + run.begin * stride, run.length, e_,
                                                       Eigen::OuterStride<>(stride)) =
            out_.middleRows(row, run.length);
        row += run.length;
      }
    }
  }

 private:
  template <class F>
  void for_each_block(F&& f) const {
    Index begin = 0;
    for (Index b = 0; b < blocks_.blocks(); begin += blocks_.block_size(b), ++b) {
      f(b, begin, blocks_.block_size(b));
    }
  }

  P blocks_;
  Matrix<T> mixing_;
  Index d_, e_;
  Matrix<T> q_, k_, v_, out_, summaries_, mixed_, key_sums_, mixed_key_sums_;
  Eigen::Matrix<T, Eigen::Dynamic, 1> denominators_;
};

}  // namespace mhla::bench
