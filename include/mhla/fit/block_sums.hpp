#pragma once

/// \file
/// Sums of the residual rows (residual_rows.hpp) of one query block over all examples. They give
/// the residual of any row m_i of a mixing matrix, of these blocks or of coarser blocks.
///
///     |sum_b m_ib row_b - f|^2 = x^T gram x,    x = (m_ib for the columns b of the row, -1)
///
/// Coarser blocks share coefficients. With P [n,n'] that marks merged columns, the gram of a merged
/// query block is sum_i P^T gram_i P over its parts.

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The sums of one query block with n columns.
struct BlockSums {
  Matrix<double> gram;  ///< [n + 1, n + 1], lower triangle; f last
  Matrix<double> sums;  ///< [1, n], sum of s_t z_tb / d_t: growth of denominators per unit of m_ib
  double sum = 0;       ///< sum of s_t r_t / d_t with the start matrix
  double targets = 0;   ///< sum of |target_t|^2
  Index queries = 0;
  Index left_out = 0;  ///< queries with a denominator of 0, which add nothing

  explicit BlockSums(Index columns)
      : gram(Matrix<double>::Zero(columns + 1, columns + 1)),
        sums(Matrix<double>::Zero(1, columns)) {}

  Index columns() const { return gram.rows() - 1; }
  bool finite() const { return std::isfinite(trace(gram.rows()) + targets + sum); }

  /// Squared residual of a row. Rounding cannot make it negative.
  /// \param m  m(r) is the coefficient of column r
  template <class M>
  double residual(M&& m) const {
    const auto x = [&](Index r) { return r == columns() ? -1 : double{m(r)}; };
    double square = 0;
    for (Index r = 0; r <= columns(); ++r) {
      double half = gram(r, r) * x(r) / 2;
      for (Index c = 0; c < r; ++c) half += gram(r, c) * x(c);
      square += 2 * half * x(r);
    }
    return std::max(square, 0.0);
  }

  /// Part of `gram` without f, both triangles.                                   // [n,n]
  Matrix<double> symmetric() const {
    Matrix<double> all(columns(), columns());
    for (Index r = 0; r < columns(); ++r) {
      for (Index c = 0; c <= r; ++c) all(r, c) = all(c, r) = gram(r, c);
    }
    return all;
  }
  /// Mean diagonal element of `gram` without f; 0 without columns.
  double mean_diagonal() const {
    return trace(columns()) / static_cast<double>(std::max<Index>(1, columns()));
  }
  /// Sum of the first n diagonal elements of `gram`.
  double trace(Index n) const {
    double all = 0;
    for (Index r = 0; r < n; ++r) all += gram(r, r);
    return all;
  }
  /// Inner product of column r and f.
  double right(Index r) const { return gram(columns(), r); }

  /// Adds the sums of another block, whose column r is column place(r) of this one.
  template <class Place>
  void add(const BlockSums& other, Place&& place) {
    const auto to = [&](Index r) { return r == other.columns() ? columns() : place(r); };
    for (Index r = 0; r <= other.columns(); ++r) {
      for (Index c = 0; c <= r; ++c) {
        const Index row = std::max(to(r), to(c)), column = std::min(to(r), to(c));
        gram(row, column) += (row == column && r != c ? 2 : 1) * other.gram(r, c);
      }
    }
    for (Index r = 0; r < other.columns(); ++r) sums(0, place(r)) += other.sums(0, r);
    sum += other.sum;
    targets += other.targets;
    queries += other.queries;
    left_out += other.left_out;
  }
};

/// Throws unless denominators sum to a number above 0.
inline void expect_denominators(const char* function, double sum, const std::string& where) {
  if (sum > 0 && std::isfinite(sum)) return;
  fail_option(function, "fit", "has denominators that sum to " + std::to_string(sum) + where,
              "a sum above 0");
}

/// Throws unless `groups` has an entry for each of `blocks` blocks, and each group from 0 on has a
/// block.
/// \return the number of groups
inline Index expect_groups(const char* function, const char* argument,
                           std::span<const Index> groups, Index blocks) {
  if (static_cast<Index>(groups.size()) != blocks) {
    fail_shape(function, argument, "has " + std::to_string(groups.size()) + " entries",
               std::to_string(blocks) + ", a group for each block");
  }
  const Index last = *std::max_element(groups.begin(), groups.end());
  for (Index g = std::min<Index>(0, *std::min_element(groups.begin(), groups.end())); g <= last;
       ++g) {
    const bool there = std::find(groups.begin(), groups.end(), g) != groups.end();
    if (there == (g >= 0)) continue;
    fail_option(function, argument,
                (there ? "has a group " : "has no block in group ") + std::to_string(g),
                "groups from 0 on, each with a block");
  }
  return last + 1;
}

/// Returns the means of the coefficients between groups of query blocks and of key blocks.
/// \param causal  coefficients above the diagonal are not read
template <class A>
MixingMatrix<A> mean_of_groups(const MixingView<const A>& m, std::span<const Index> queries,
                               Index query_groups, std::span<const Index> keys, Index key_groups,
                               bool causal) {
  Matrix<A> sums = Matrix<A>::Zero(query_groups, key_groups), members = sums;
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index b = 0; b < (causal ? i + 1 : m.cols()); ++b) {
      const Index row = queries[static_cast<std::size_t>(i)],
                  column = keys[static_cast<std::size_t>(b)];
      sums(row, column) += m(i, b);
      members(row, column) += 1;
    }
  }
  return MixingMatrix<A>(sums.cwiseQuotient(members.cwiseMax(A(1))).eval());
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
