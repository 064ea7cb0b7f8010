#pragma once

/// \file
/// What an attention matrix is like, for sizes where it can be written down.
///
///     rank        numerical: singular values above max(Nq, Nk) * eps * the largest
///     rank bound  min(Nq, Nk, D * rank(m), sum_b min(W_b, D)), W_b the sizes of the query blocks
///     entropy     mean over rows of -sum_j p_j ln p_j, p = |a| / sum |a|
///     condition   max over rows of sum_j |a_j| / |den|: how many times larger than their result
///                 the sums are that the denominator cancels from; 1 for nonnegative weights
///
/// Plain linear attention has rank <= D and entropy near ln(N): it goes flat. Needs Eigen's SVD,
/// so this header is not part of mhla.hpp. Cost: a singular value decomposition, O(N^3).
/// Source: arXiv:2601.07832, section 4.3 and figure 3; the bound with rank(m) is ours.

#include <Eigen/SVD>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"

namespace mhla::inline MHLA_TARGET {

/// The matrix a form applies to the values, and its figures.
template <Accumulator A>
struct Diagnosis {
  Matrix<A> weights;     ///< [Nq,Nk], rows divided by their denominators
  Index rank = 0;        ///< numerical rank of `weights`
  Index rank_bound = 0;  ///< what the rank can be at most
  double entropy = 0;    ///< mean row entropy in nats
  double condition = 0;  ///< worst condition of a denominator; 1 without a normaliser
};

/// Returns the attention matrix of bidirectional() with these arguments (in.v is not read), and
/// what it is like. Masked queries have rows of zeros.
/// \throws as bidirectional does. Cost: O(N^3) time, O(M*D*N + N^2) memory.
template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, OperatorOn<T> Op>
Diagnosis<accumulator_t<T>> diagnose(const Inputs<T>& in, const QueryBlocks& query_blocks,
                                     const KeyBlocks& key_blocks,
                                     const MixingMatrix<accumulator_t<T>>& mixing, const Op& op);

/// Number of singular values of `m` above max(rows, cols) * eps(A) * the largest.
template <Accumulator A>
Index numerical_rank(const Matrix<A>& m);

/// Mean over the rows of `weights` of their entropy in nats; rows of zeros are left out.
template <Accumulator A>
double mean_row_entropy(const Matrix<A>& weights);

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
Index numerical_rank(const Matrix<A>& m) {
  if (m.size() == 0) return 0;
  const Eigen::BDCSVD<Eigen::MatrixXd> svd(m.template cast<double>());
  const auto& values = svd.singularValues();
  const double threshold = static_cast<double>(std::max(m.rows(), m.cols())) *
                           static_cast<double>(std::numeric_limits<A>::epsilon()) * values(0);
  return (values.array() > threshold).count();
}

template <Accumulator A>
double mean_row_entropy(const Matrix<A>& weights) {
  double total = 0;
  Index rows = 0;
  for (Index t = 0; t < weights.rows(); ++t) {
    const double sum = weights.row(t).template cast<double>().cwiseAbs().sum();
    if (!(sum > 0)) continue;
    for (Index j = 0; j < weights.cols(); ++j) {
      const double p = std::abs(static_cast<double>(weights(t, j))) / sum;
      if (p > 0) total -= p * std::log(p);
    }
    ++rows;
  }
  return rows == 0 ? 0 : total / static_cast<double>(rows);
}

namespace detail {

/// phi of all rows of x, in double; masked rows are 0.                        // [N,D]
template <class A, Scalar T, class Map>
Matrix<double> all_features(MatrixView<const T> x, Mask mask, const Map& map) {
  Matrix<A> row(1, x.cols), features(1, map.features(x.cols));
  Matrix<double> all = Matrix<double>::Zero(x.rows, features.cols());
  for (Index t = 0; t < x.rows; ++t) {
    if (!mask[t]) continue;
    widen(x.row(t), x.col_stride, row.data(), x.cols);
    map(static_cast<const A*>(row.data()), features.data(), x.cols);
    all.row(t) = features.template cast<double>();
  }
  return all;
}

/// Sums of the rows of each block.                                            // [M,D]
template <Partition P>
Matrix<double> block_sums(const Matrix<double>& rows, const P& blocks) {
  Matrix<double> sums = Matrix<double>::Zero(blocks.blocks(), rows.cols());
  for (Index b = 0; b < blocks.blocks(); ++b) {
    for (Index r = 0; r < blocks.runs(b); ++r) {
      const Run run = blocks.run(b, r);
      sums.row(b) += rows.middleRows(run.begin, run.length).colwise().sum();
    }
  }
  return sums;
}

/// Denominators without eps, in the order of the blocks: row i holds the slots of block i.
/// \param keys  z [Mk,D]   \param mixing  [Mq,Mk]
template <class Z, Partition P>
std::vector<double> block_denominators(const Matrix<double>& queries, const P& blocks,
                                       const Matrix<double>& keys, const Matrix<double>& mixing) {
  std::vector<double> all;
  const auto token = [&blocks](Index b, Index slot) {
    Index r = 0;
    for (; slot >= blocks.run(b, r).length; ++r) slot -= blocks.run(b, r).length;
    return blocks.run(b, r).begin + slot;
  };
  for (Index i = 0; i < blocks.blocks(); ++i) {
    for (Index w = 0; w < blocks.block_size(i); ++w) {
      double sum = 0;
      for (Index b = 0; b < keys.rows(); ++b) {
        const Index query = token(std::same_as<Z, CrossQuery> ? b : i, w);
        sum += mixing(i, b) * queries.row(query).dot(keys.row(b));
      }
      all.push_back(sum);
    }
  }
  return all;
}

}  // namespace detail

template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, OperatorOn<T> Op>
Diagnosis<accumulator_t<T>> diagnose(const Inputs<T>& in, const QueryBlocks& query_blocks,
                                     const KeyBlocks& key_blocks,
                                     const MixingMatrix<accumulator_t<T>>& mixing, const Op& op) {
  using A = accumulator_t<T>;
  using Z = detail::normalizer_t<Op>;
  Diagnosis<A> result;

  // The operator is linear in v: applied to the unit matrix it is its attention matrix.
  const Matrix<T> unit = Matrix<T>::Identity(in.k.rows, in.k.rows);
  Matrix<T> weights(in.q.rows, in.k.rows);
  Inputs<T> with_unit = in;
  with_unit.v = unit;
  bidirectional(with_unit, query_blocks, key_blocks, mixing, op, weights);
  result.weights = weights.template cast<A>();
  result.rank = numerical_rank(result.weights);
  result.entropy = mean_row_entropy(result.weights);

  const Index d = op.query_map.features(in.q.cols);
  Index by_blocks = 0;
  for (Index b = 0; b < query_blocks.blocks(); ++b) {
    by_blocks += std::min(query_blocks.block_size(b), d);
  }
  result.rank_bound =
      std::min({in.q.rows, in.k.rows, d * numerical_rank(mixing.dense()), by_blocks});

  result.condition = 1;
  if constexpr (detail::kUsesKeySums<Z>) {
    const bool own = !in.normalizer_q.absent();
    const Matrix<double> queries = op.scale * detail::all_features<A>(own ? in.normalizer_q : in.q,
                                                                      in.query_mask, op.query_map);
    const Matrix<double> keys =
        detail::all_features<A>(own ? in.normalizer_k : in.k, in.key_mask, op.key_map);
    const Matrix<double> m = mixing.dense().template cast<double>();
    const auto signed_sums = detail::block_denominators<Z>(queries, query_blocks,
                                                           detail::block_sums(keys, key_blocks), m);
    const auto absolute_sums = detail::block_denominators<Z>(
        queries.cwiseAbs(), query_blocks, detail::block_sums(keys.cwiseAbs(), key_blocks),
        m.cwiseAbs());
    for (std::size_t t = 0; t < signed_sums.size(); ++t) {
      const double eps = op.normalizer.eps;
      const double size = absolute_sums[t] + std::abs(eps);
      if (size > 0) {
        result.condition = std::max(result.condition, size / std::abs(signed_sums[t] + eps));
      }
    }
  }
  return result;
}

}  // namespace mhla::inline MHLA_TARGET
