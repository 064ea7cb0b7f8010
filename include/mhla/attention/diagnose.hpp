#pragma once

/// \file
/// Figures of an attention matrix, for sizes at which it fits in memory.
///
///     rank        numerical: singular values above max(Nq, Nk) * eps * the largest
///     rank bound  min(Nq, Nk, D * rank(m), sum_b min(W_b, D)), W_b the sizes of the query blocks
///     entropy     mean over rows of -sum_j p_j ln p_j, p = |a| / sum |a|
///     condition   max over rows of |den| with |phi| and |m| in place of phi and m, over |den|: the
///                 cancellation in the denominator; 1 for nonnegative features and mixing
///
/// Plain linear attention has rank <= D and entropy near ln(N). Needs Eigen's decompositions, so
/// mhla.hpp does not include it. Source: arXiv:2601.07832, section 4.3 and figure 3; the bound with
/// rank(m) is ours.

#include <Eigen/Eigenvalues>
#include <Eigen/SVD>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/naive.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The matrix that a form applies to the values, and its figures.
template <Accumulator A>
struct Diagnosis {
  Matrix<A> weights;     ///< [Nq,Nk], rows divided by their denominators
  Index rank = 0;        ///< numerical rank of `weights`
  Index rank_bound = 0;  ///< upper bound of the rank
  double entropy = 0;    ///< mean row entropy in nats
  double condition = 0;  ///< worst condition of a denominator; 1 without a normaliser
};

/// Returns the attention matrix of bidirectional() with these arguments (in.v is not read), and its
/// figures. Rows of masked queries are 0.
/// \throws as bidirectional does. Cost: O(N^3) time, O(M*D*N + N^2) memory.
template <Scalar T, AttentionBlocks Blocks, OperatorOn<T> Op = Operator<>>
Diagnosis<accumulator_t<T>> diagnose(
    const Inputs<T>& in, const Blocks& blocks,
    const std::type_identity_t<MixingView<const accumulator_t<T>>>& mixing, const Op& op = {});

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
  Eigen::MatrixXd reduced = m.template cast<double>();
  if (m.rows() < m.cols()) reduced.transposeInPlace();
  const Index n = reduced.cols();
  Eigen::VectorXd diagonal(n), above(n - 1), room(reduced.rows());
  Eigen::internal::upperbidiagonalization_inplace_unblocked(reduced, diagonal.data(), above.data(),
                                                            room.data());
  // Its singular values and their negatives are the eigenvalues of a tridiagonal matrix (Golub and
  // Kahan, 1965). Eigen's own decompositions compile for 13 s and more.
  Eigen::VectorXd beside(2 * n - 1);
  for (Index i = 0; i < 2 * n - 1; ++i) beside(i) = i % 2 == 0 ? diagonal(i / 2) : above(i / 2);
  Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver;
  solver.computeFromTridiagonal(Eigen::VectorXd::Zero(2 * n), beside, Eigen::EigenvaluesOnly);
  const Eigen::VectorXd& values = solver.eigenvalues();  // ascending
  const double threshold = static_cast<double>(std::max(m.rows(), m.cols())) *
                           static_cast<double>(std::numeric_limits<A>::epsilon()) *
                           values(2 * n - 1);
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

template <Scalar T, AttentionBlocks Blocks, OperatorOn<T> Op>
Diagnosis<accumulator_t<T>> diagnose(
    const Inputs<T>& in, const Blocks& blocks,
    const std::type_identity_t<MixingView<const accumulator_t<T>>>& mixing, const Op& op) {
  using A = accumulator_t<T>;
  Diagnosis<A> result;

  // The operator is linear in v: values that are the unit matrix give its attention matrix.
  const Matrix<T> unit = Matrix<T>::Identity(in.k.rows, in.k.rows);
  Inputs<T> with_unit = in;
  with_unit.v = unit;
  result.weights = bidirectional(with_unit, blocks, mixing, op).template cast<A>();
  result.rank = numerical_rank(result.weights);
  result.entropy = mean_row_entropy(result.weights);

  const Index d = op.query_map.features(in.q.cols);
  const auto& queries = detail::blocks_of(detail::query_blocks(blocks), in.q.rows);
  Index by_blocks = 0;
  for (Index b = 0; b < queries.blocks(); ++b) by_blocks += std::min(queries.block_size(b), d);
  result.rank_bound =
      std::min({in.q.rows, in.k.rows, d * numerical_rank(mixing.dense()), by_blocks});

  result.condition = 1;
  if (op.normalizer.sums() == WeightSums::kNone) return result;
  auto p = naive_problem(in, blocks, mixing, op);
  const Matrix<double> denominators = naive_denominators(p);
  for (Matrix<double>* m : {&p.q, &p.k, &p.normalizer_q, &p.normalizer_k, &p.mixing}) {
    *m = m->cwiseAbs();
  }
  const Matrix<double> sizes = naive_denominators(p);
  for (Index t = 0; t < sizes.rows(); ++t) {
    const double size = std::abs(sizes(t, 0));
    if (!in.query_mask[t] || !(size > 0)) continue;
    result.condition = std::max(result.condition, size / std::abs(denominators(t, 0)));
  }
  return result;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
