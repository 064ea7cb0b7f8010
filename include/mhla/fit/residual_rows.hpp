#pragma once

/// \file
/// The linear system that a mixing matrix is fitted to, for one head. The row of query block i
/// enters the output of its queries linearly,
///
///     den_t o_t - den_t target_t = sum_b m_ib (y_tb - s_t z_tb target_t) - f_t
///
///     y_tb = phi(q_t)^T S_b, the part of block b in t's output   z_tb likewise in the sum r_t
///     den(r) = d_t + s_t (r - r_t) near the r_t of the start matrix m
///     f_t    = (d_t - s_t r_t) target_t              exact for all normalisers of the library
///
/// The squares of the rows, divided by d_t, sum to a quadratic function of m_i. Its Gram matrix is
/// that of these rows, f_t last. All numbers are double, computed after feature maps in the
/// accumulator type of the tensors.
/// Cost: 2 N M D E flops for y, N M^2 E for the Gram matrices; memory N (D + E) + M D E numbers.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "mhla/attention/naive.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/fit/block_sums.hpp"
#include "mhla/kernel/inner_products.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/policy/normalizer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Kept tokens in the order of their blocks.
class TokensByBlock {
 public:
  TokensByBlock(const std::vector<Index>& block, const std::vector<bool>& kept, Index blocks)
      : begin_(static_cast<std::size_t>(blocks) + 1) {
    for (std::size_t t = 0; t < block.size(); ++t) {
      begin_[static_cast<std::size_t>(block[t]) + 1] += kept[t];
    }
    for (std::size_t b = 1; b < begin_.size(); ++b) begin_[b] += begin_[b - 1];
    tokens_.resize(static_cast<std::size_t>(begin_.back()));
    std::vector<Index> next = begin_;
    for (std::size_t t = 0; t < block.size(); ++t) {
      if (!kept[t]) continue;
      const Index place = next[static_cast<std::size_t>(block[t])]++;
      tokens_[static_cast<std::size_t>(place)] = static_cast<Index>(t);
    }
  }
  Index begin(Index b) const { return begin_[static_cast<std::size_t>(b)]; }
  Index size(Index b) const { return begin(b + 1) - begin(b); }
  Index token(Index place) const { return tokens_[static_cast<std::size_t>(place)]; }
  /// Returns the rows of m at these tokens.
  Matrix<double> rows(const Matrix<double>& m) const {
    Matrix<double> sorted(static_cast<Index>(tokens_.size()), m.cols());
    for (Index r = 0; r < sorted.rows(); ++r) sorted.row(r) = m.row(token(r));
    return sorted;
  }

 private:
  std::vector<Index> begin_;   // [M + 1]
  std::vector<Index> tokens_;  // [kept]
};

/// A matrix as rows of a product.
inline Rows<const double> rows_of(const Matrix<double>& m, Index from = 0) {
  return {m.data() + from * m.cols(), m.cols()};
}

/// One head, prepared to give the rows of any query block.
template <class Z>
class ResidualRows {
 public:
  ResidualRows(const NaiveProblem<double, Z>& p, Index query_blocks, Index key_blocks)
      : p_(p),
        queries_(p.query_block, p.query_kept, query_blocks),
        keys_(p.key_block, p.key_kept, key_blocks),
        separate_(p.normalizer_q.size() > 0),
        sums_(p.normalizer.sums()),
        q_(queries_.rows(p.q)),
        k_(keys_.rows(p.k)),
        v_(keys_.rows(p.v)),
        normalizer_q_(separate_ ? queries_.rows(p.normalizer_q) : Matrix<double>(0, 0)),
        normalizer_k_(separate_ ? keys_.rows(p.normalizer_k) : Matrix<double>(0, 0)),
        summaries_(key_blocks * p.q.cols(), p.v.cols()),
        key_sums_(Matrix<double>::Zero(key_blocks, key_features().cols())) {
    for (Index b = 0; b < key_blocks; ++b) summarize(b);
    if (sums_ == WeightSums::kCrossQuery) sum_slots(query_blocks);
  }

  /// Adds the rows of query block i to its sums.
  /// \param blocks   the key blocks, ascending
  /// \param targets  [N,E], rows of masked queries are not read
  template <class T>
  void add(Index i, std::span<const Index> blocks, MatrixView<const T> targets,
           BlockSums& to) const {
    constexpr Index kTokens = 16;  // tokens per strip: rows for 64 blocks of 64 values are 0.5 MB
    const Index n = std::ssize(blocks), e = p_.v.cols();
    Matrix<double> rows(to.gram.rows(), kTokens * e), sums(kTokens, n);
    for (Index done = 0; done < queries_.size(i); done += kTokens) {
      const Index place = queries_.begin(i) + done;
      const Index count = std::min(kTokens, queries_.size(i) - done);
      rows.setZero();
      write_values(i, blocks, place, count, rows);
      sums.setZero();
      write_sums(i, blocks, place, count, sums);
      for (Index s = 0; s < count; ++s) {
        subtract_target(i, blocks, queries_.token(place + s), s, sums, targets, rows, to);
      }
      for (Index r = 0; r < rows.rows(); r += kInnerRows) {
        const Index some = std::min<Index>(kInnerRows, rows.rows() - r);
        add_inner_products<double>(rows_of(rows, r), some, rows_of(rows), r + some, count * e,
                                   {to.gram.data() + r * to.gram.cols(), to.gram.cols()});
      }
    }
  }

 private:
  const Matrix<double>& query_features() const { return separate_ ? normalizer_q_ : q_; }
  const Matrix<double>& key_features() const { return separate_ ? normalizer_k_ : k_; }
  bool causal() const { return p_.order == Order::kCausal; }

  void summarize(Index b) {
    const Index d = k_.cols(), e = v_.cols(), begin = keys_.begin(b), count = keys_.size(b);
    multiply<double>({.out = {summaries_.data() + b * d * e, e},
                      .a = MatrixView<const double>(k_).middle_rows(begin, count).transposed(),
                      .b = rows_of(v_, begin),
                      .cols = e});
    for (Index t = begin; t < begin + count; ++t) key_sums_.row(b) += key_features().row(t);
  }

  /// Computes s_bw of all slots; 0 where the query is masked.
  void sum_slots(Index blocks) {
    Index most_slots = 0;
    for (const Index slot : p_.query_slot) most_slots = std::max(most_slots, slot + 1);
    slot_sums_ = Matrix<double>::Zero(blocks, most_slots);
    for (Index b = 0; b < blocks; ++b) {
      for (Index t = queries_.begin(b); t < queries_.begin(b + 1); ++t) {
        slot_sums_(b, slot(queries_.token(t))) = query_features().row(t).dot(key_sums_.row(b));
      }
    }
  }
  Index slot(Index token) const { return p_.query_slot[static_cast<std::size_t>(token)]; }

  /// x_t . y_j of the queries of a strip and the keys of block i up to each.           //
  /// [count, keys]
  Matrix<double> earlier_products(Index i, Index place, Index count, const Matrix<double>& x,
                                  const Matrix<double>& y) const {
    Matrix<double> products = Matrix<double>::Zero(count, keys_.size(i));
    add_inner_products<double>(rows_of(x, place), count, rows_of(y, keys_.begin(i)),
                               products.cols(), x.cols(), {products.data(), products.cols()});
    for (Index s = 0; s < count; ++s) {
      for (Index j = 0; j < products.cols(); ++j) {
        if (keys_.token(keys_.begin(i) + j) > queries_.token(place + s)) products(s, j) = 0;
      }
    }
    return products;
  }

  /// Writes y_tb of a strip, a row for each b.                              // [n, count * E]
  void write_values(Index i, std::span<const Index> blocks, Index place, Index count,
                    Matrix<double>& rows) const {
    const Index d = q_.cols(), e = v_.cols();
    Rows<double> out(rows.data(), e);
    for (const Index b : blocks) {
      if (causal() && b == i) {
        const Matrix<double> products = earlier_products(i, place, count, q_, k_);
        multiply<double>({.out = out, .a = products, .b = rows_of(v_, keys_.begin(i)), .cols = e});
      } else {
        multiply<double>({.out = out,
                          .a = MatrixView<const double>(q_).middle_rows(place, count),
                          .b = rows_of(summaries_, b * d),
                          .cols = e});
      }
      out.data += rows.cols();
    }
  }

  /// Writes z_tb of a strip.                                                // [count, n]
  void write_sums(Index i, std::span<const Index> blocks, Index place, Index count,
                  Matrix<double>& sums) const {
    if (sums_ == WeightSums::kNone) return;
    for (Index n = 0; n < sums.cols(); ++n) {
      const Index b = blocks[static_cast<std::size_t>(n)];
      if (sums_ == WeightSums::kCrossQuery) {
        for (Index s = 0; s < count; ++s) {
          sums(s, n) = slot_sums_(b, slot(queries_.token(place + s)));
        }
      } else if (causal() && b == i) {
        sums.col(n).head(count) =
            earlier_products(i, place, count, query_features(), key_features()).rowwise().sum();
      } else {
        for (Index s = 0; s < count; ++s) {
          sums(s, n) = query_features().row(place + s).dot(key_sums_.row(b));
        }
      }
    }
  }

  /// Turns rows of y_tb into the rows of query s of a strip, and writes f_t after them.
  template <class T>
  void subtract_target(Index i, std::span<const Index> blocks, Index token, Index s,
                       const Matrix<double>& sums, MatrixView<const T> targets,
                       Matrix<double>& rows, BlockSums& to) const {
    const Index n = std::ssize(blocks), e = v_.cols();
    double r = 0, den, slope;
    for (Index b = 0; b < n; ++b) {
      r += p_.mixing(i, blocks[static_cast<std::size_t>(b)]) * sums(s, b);
    }
    write_denominators(p_.normalizer, &r, 1, &den);
    write_slopes(p_.normalizer, &r, 1, &slope);
    if (std::abs(den) < std::numeric_limits<double>::min()) {  // 0 or nearly 0; not NaN
      rows.middleCols(s * e, e).setZero();
      ++to.left_out;
      return;
    }
    const double factor = 1 / den;
    for (Index b = 0; b < n; ++b) to.sums(0, b) += factor * slope * sums(s, b);
    to.sum += factor * slope * r;
    ++to.queries;
    for (Index j = 0; j < e; ++j) {
      const double target = static_cast<double>(static_cast<accumulator_t<T>>(targets(token, j)));
      const Index column = s * e + j;
      for (Index b = 0; b < n; ++b) {
        double& row = rows(b, column);
        row = factor * (row - slope * sums(s, b) * target);
      }
      rows(rows.rows() - 1, column) = factor * (den - slope * r) * target;
      to.targets += target * target;
    }
  }

  const NaiveProblem<double, Z>& p_;
  TokensByBlock queries_, keys_;
  bool separate_;  // the denominator has separate queries and keys
  WeightSums sums_;
  Matrix<double> q_, k_, v_, normalizer_q_, normalizer_k_;  // in the order of blocks
  Matrix<double> summaries_;                                // [M, D, E]
  Matrix<double> key_sums_;                                 // [M, Dz]
  Matrix<double> slot_sums_;                                // [M, W] of CrossQuery
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
