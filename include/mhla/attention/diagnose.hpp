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
/// Plain linear attention has rank <= D and entropy near ln(N). Source:
/// arXiv:2601.07832, section 4.3 and figure 3; the bound with rank(m) is ours.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
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
/// figures. Rows of masked queries are 0. A head with a mixing matrix of its own passes of_head(h).
/// \throws as bidirectional does. Cost: O(N^3) time, O(M*D*N + N^2) memory.
template <Scalar T, AttentionBlocks Blocks, OperatorOn<T> Op = Operator<>>
Diagnosis<accumulator_t<T>> diagnose(
    const Inputs<T>& in, const Blocks& blocks,
    const std::type_identity_t<MixingView<const accumulator_t<T>>>& mixing, const Op& op = {});

/// Number of singular values of `m` above max(R, C) * eps(A) * the largest. Cost: O(R * C *
/// min(R, C)) time, O(R * C) memory, in double.
template <Accumulator A>
Index numerical_rank(const Matrix<A>& m);

/// Mean over the rows of `weights` of their entropy in nats; rows of zeros are left out.
template <Accumulator A>
double mean_row_entropy(const Matrix<A>& weights);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Reduces `m` [R,C], R >= C >= 1, to a bidiagonal matrix by reflections from both sides (Golub and
/// Kahan, 1965). Returns its 2 C - 1 elements on and above the diagonal, in turn.
inline std::vector<double> bidiagonal(Matrix<double> m) {
  const Index rows = m.rows(), columns = m.cols();
  std::vector<double> elements, scratch(static_cast<std::size_t>(rows + columns));
  double* const u = scratch.data();
  double* const product = u + rows;
  // Makes u a unit vector and I - 2 u u^T the reflection that leaves only the first element of it.
  const auto reflect = [&elements, u](Index size) {
    double squares = 0;
    for (Index i = 0; i < size; ++i) squares += u[i] * u[i];
    const double first = u[0], left = first > 0 ? -std::sqrt(squares) : std::sqrt(squares);
    elements.push_back(left);
    u[0] -= left;
    const double norm = std::sqrt(squares - first * first + u[0] * u[0]);
    for (Index i = 0; i < size; ++i) u[i] = norm > 0 ? u[i] / norm : 0;
  };
  for (Index c = 0; c < columns; ++c) {
    for (Index i = c; i < rows; ++i) u[i - c] = m(i, c);
    reflect(rows - c);
    std::fill(product, product + columns, 0.0);
    for (Index i = c; i < rows; ++i) {
      for (Index j = c + 1; j < columns; ++j) product[j] += u[i - c] * m(i, j);
    }
    for (Index i = c; i < rows; ++i) {
      for (Index j = c + 1; j < columns; ++j) m(i, j) -= 2 * u[i - c] * product[j];
    }
    const Index behind = columns - c - 1;
    if (behind == 0) break;

    std::copy_n(&m(c, c + 1), behind, u);
    reflect(behind);
    for (Index i = c + 1; i < rows; ++i) {
      double* const row = &m(i, c + 1);
      const double dot = Eigen::Map<const Eigen::VectorXd>(row, behind)
                             .dot(Eigen::Map<const Eigen::VectorXd>(u, behind));
      for (Index j = 0; j < behind; ++j) row[j] -= 2 * dot * u[j];
    }
  }
  return elements;
}

/// Counts the singular values of a bidiagonal matrix above `x` > 0. The tridiagonal matrix T with
/// zeros on its diagonal and `elements` beside it has the eigenvalues +- these singular values.
/// The number of eigenvalues above x is that of positive pivots of T - x I (Sylvester).
inline Index singular_values_above(const std::vector<double>& elements, double x) {
  double pivot = -x;
  Index above = 0;
  for (const double element : elements) {
    pivot = -x - element * element / pivot;
    if (pivot == 0) pivot = -std::numeric_limits<double>::min();
    above += pivot > 0;
  }
  return above;
}

}  // namespace detail

template <Accumulator A>
Index numerical_rank(const Matrix<A>& m) {
  double scale = 0;
  for (Index i = 0; i < m.size(); ++i) scale = std::max(scale, std::abs(double{m.data()[i]}));
  if (!(scale > 0)) return 0;
  Matrix<double> tall(std::max(m.rows(), m.cols()), std::min(m.rows(), m.cols()));
  for (Index i = 0; i < m.rows(); ++i) {
    for (Index j = 0; j < m.cols(); ++j) {
      (m.rows() < m.cols() ? tall(j, i) : tall(i, j)) = double{m(i, j)} / scale;
    }
  }
  const std::vector<double> elements = detail::bidiagonal(std::move(tall));

  // The largest singular value is at most the norm, and found by halving.
  double below = 0, largest = 0;
  for (const double element : elements) largest = std::hypot(largest, element);
  for (double middle = largest / 2; below < middle && middle < largest;
       middle = below + (largest - below) / 2) {
    (detail::singular_values_above(elements, middle) > 0 ? below : largest) = middle;
  }
  const double threshold = static_cast<double>(std::max(m.rows(), m.cols())) *
                           static_cast<double>(std::numeric_limits<A>::epsilon()) * largest;
  return detail::singular_values_above(elements, threshold);
}

template <Accumulator A>
double mean_row_entropy(const Matrix<A>& weights) {
  double total = 0;
  Index rows = 0;
  for (Index t = 0; t < weights.rows(); ++t) {
    double sum = 0;
    for (Index j = 0; j < weights.cols(); ++j) sum += std::abs(double{weights(t, j)});
    if (!(sum > 0)) continue;
    for (Index j = 0; j < weights.cols(); ++j) {
      const double p = std::abs(double{weights(t, j)}) / sum;
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

  // The operator is linear in v: values that are the unit matrix give its attention matrix, in A,
  // for outputs rounded to half precision have the rank of their errors.
  const auto widened = [](const char* name, const MatrixView<const T>& x) {
    detail::expect_shape("bidirectional", name, x, -1, -1);
    Matrix<A> all(x.rows, x.cols);
    for (Index t = 0; t < x.rows; ++t) {
      for (Index j = 0; j < x.cols; ++j) all(t, j) = static_cast<A>(x(t, j));
    }
    return all;
  };
  const Matrix<A> q = widened("q", in.q), k = widened("k", in.k),
                  own_q = widened("normalizer_q", in.normalizer_q),
                  own_k = widened("normalizer_k", in.normalizer_k),
                  unit = Matrix<A>::Identity(k.rows(), k.rows());
  const Inputs<A> with_unit{.q = q,
                            .k = k,
                            .v = unit,
                            .normalizer_q = own_q,
                            .normalizer_k = own_k,
                            .query_mask = in.query_mask,
                            .key_mask = in.key_mask};
  result.weights = bidirectional(with_unit, blocks, mixing, op);
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
  auto p = naive_problem(with_unit, blocks, mixing, op);
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
