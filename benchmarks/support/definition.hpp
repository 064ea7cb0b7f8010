#pragma once

/// \file
/// Single output rows by the library's definition (attention/naive.hpp), in double, and the bound
/// of a computed row's error.
///
///     o_t = sum_j w_tj v_j / den_t,   den_t = sum_j w_tj, or 1 without a normaliser
///
/// A row is correct if |o^ - o| <= g (A + |o| Z) / |den|, where A = sum |w||v|, Z = sum |w| (0
/// without a normaliser). Here g bounds the relative error of a sum whose longest chain has m
/// roundings.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "mhla/attention/naive.hpp"

namespace mhla::bench {

/// Bound of the relative error of m roundings to u, at most m u / (1 - m u). Rounding errors of
/// different signs cancel, so 8 sqrt(m) u fails with probability 2 e^-32 per operation (Higham and
/// Mary, SIAM J. Sci. Comput. 41(5), 2019). The smaller bound keeps long sums testable.
inline double rounding_bound(double m, double u) {
  const double chain = std::min(m, 8 * std::sqrt(m)) * u;
  return chain / (1 - chain);
}

/// The weights of all keys for one query.
struct Weights {
  std::vector<double> value{};  ///< [N] w_tj
  std::vector<double> size{};   ///< [N] the same with the absolute value of every product
  std::vector<double> error{};  ///< [N] bound of the computed w_tj, relative to size
  bool normalized = true;       ///< den_t is the sum of value; otherwise 1
};

/// One output row by the definition, and its bound.
struct ExactRow {
  std::vector<double> value;  ///< [E]
  std::vector<double> bound;  ///< [E]
};

template <Scalar T>
double exactly(T x) {
  return static_cast<double>(static_cast<accumulator_t<T>>(x));
}

template <Scalar T>
inline constexpr double kUnitRoundoff =
    static_cast<double>(std::numeric_limits<accumulator_t<T>>::epsilon()) / 2;
/// Unit roundoff of storing an output as T, 0 if sums have type T.
template <Scalar T>
inline constexpr double kStorageRoundoff = 0;
template <>
inline constexpr double kStorageRoundoff<Eigen::bfloat16> = 0x1p-8;

/// The weights of query t on the keys of `blocks`, which partitions the head's first keys.
/// \param coefficient  key block -> coefficient of the mixing matrix
/// \param m            roundings of the longest chain
template <Scalar T, Partition P, class Coefficient, class Op>
Weights weights_of_row(const Inputs<T>& in, Index t, const P& blocks,
                       const Coefficient& coefficient, const Op& op, double m) {
  using A = accumulator_t<T>;
  MixingMatrix<A> mixing(Pattern(1, blocks.blocks()));
  for (Index b = 0; b < blocks.blocks(); ++b) mixing.at(0, b) = static_cast<A>(coefficient(b));
  const Index keys = blocks.tokens();
  const Inputs<T> row{.q = in.q.middle_rows(t, 1),
                      .k = in.k.middle_rows(0, keys),
                      .v = {in.v.data, keys, 0, in.v.row_stride}};
  auto p = naive_problem<double>(row, CrossBlocks{Contiguous(1, 1), blocks}, mixing, op);
  const auto weights = [&p] {
    const Matrix<double> all = naive_weights(p);
    return std::vector<double>(all.data(), all.data() + all.size());
  };
  Weights w{.value = weights()};
  for (Matrix<double>* const factor : {&p.q, &p.k, &p.mixing}) *factor = factor->cwiseAbs();
  w.size = weights();
  w.error.assign(w.size.size(), rounding_bound(m, kUnitRoundoff<T>));
  w.normalized = op.normalizer.sums() != WeightSums::kNone;
  return w;
}

/// Equal coefficients for all key blocks.
inline constexpr auto kAlike = [](Index) { return 1; };

/// w_tj = exp(s_j - max s) of the scores s_j = q_t . k_j / sqrt(D). A score's error, relative to
/// the sum of |q k|, multiplies the weight by its exponential. Subtracting the maximum adds
/// u (max s - s_j). Exponentials and sums add one rounding each, and a few per tile of 64 keys.
template <Scalar T>
Weights softmax_weights(const Inputs<T>& in, Index t) {
  const double u = kUnitRoundoff<T>, keys = static_cast<double>(in.k.rows);
  const Operator scores{Identity{}, Identity{}, NoNormalizer{},
                        1 / std::sqrt(static_cast<double>(in.k.cols))};
  Weights w = weights_of_row(in, t, Contiguous(in.k.rows, in.k.rows), kAlike, scores,
                             static_cast<double>(in.k.cols + 1));
  w.normalized = true;
  const double largest = *std::max_element(w.value.begin(), w.value.end());
  const double sums = rounding_bound(keys + 4 * (keys / 64 + 1) + 6, u);
  for (std::size_t j = 0; j < w.value.size(); ++j) {
    const double below = largest - w.value[j];
    w.error[j] = std::expm1(w.error[j] * w.size[j] + u * below + sums);
    w.value[j] = w.size[j] = std::exp(-below);
  }
  return w;
}

/// The output row that the weights give, and its bound.
template <Scalar T>
ExactRow weigh(const Weights& w, MatrixView<const T> v) {
  const auto width = static_cast<std::size_t>(v.cols);
  ExactRow row{std::vector<double>(width), std::vector<double>(width)};
  double den = 0, den_error = 0;
  for (std::size_t i = 0; i < w.size.size(); ++i) {
    if (w.size[i] == 0) continue;
    const double error = w.error[i] * w.size[i];
    den += w.value[i];
    den_error += error;
    for (std::size_t e = 0; e < width; ++e) {
      const double value = exactly(v(static_cast<Index>(i), static_cast<Index>(e)));
      row.value[e] += w.value[i] * value;
      row.bound[e] += error * std::abs(value);
    }
  }
  if (!w.normalized) den = 1, den_error = 0;
  for (std::size_t e = 0; e < width; ++e) {
    row.value[e] /= den;
    const double size = std::abs(row.value[e]);
    row.bound[e] = (row.bound[e] + size * den_error) / (std::abs(den) - den_error);
    row.bound[e] += kStorageRoundoff<T> * (size + row.bound[e]);
  }
  return row;
}

/// Largest error over bound of a computed row; infinite if a number is not finite.
template <Scalar T>
double error_over_bound(const ExactRow& row, const T* computed) {
  double worst = 0;
  for (std::size_t e = 0; e < row.value.size(); ++e) {
    const double ratio = std::abs(exactly(computed[e]) - row.value[e]) / row.bound[e];
    worst = ratio <= worst ? worst : ratio;
    if (!std::isfinite(ratio)) return std::numeric_limits<double>::infinity();
  }
  return worst;
}

}  // namespace mhla::bench
