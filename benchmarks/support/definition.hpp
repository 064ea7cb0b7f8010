#pragma once

/// \file
/// The definitions, one output row at a time in double, and how far a computed row may be off. They
/// share no code with the library's forms.
///
///     o_t = sum_j w_tj v_j / den_t,   den_t = sum_j w_tj, or 1 without a normaliser
///
/// A row is correct if |o^ - o| <= g (A + |o| Z) / |den|, A = sum |w||v|, Z = sum |w| (0 without a
/// normaliser), where g bounds the relative error of a sum whose longest chain has m roundings.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "mhla/attention/batch.hpp"

namespace mhla::bench {

/// Bound of the relative error of m roundings to u: at most m u / (1 - m u), and, as rounding
/// errors of different signs cancel, below 8 sqrt(m) u but with probability 2 e^-32 an operation
/// (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019), which keeps long sums testable.
inline double rounding_bound(double m, double u) {
  const double chain = std::min(m, 8 * std::sqrt(m)) * u;
  return chain / (1 - chain);
}

/// The weights of all keys for one query.
struct Weights {
  std::vector<double> value;  ///< [N] w_tj
  std::vector<double> size;   ///< [N] the same with the absolute value of every product
  std::vector<double> error;  ///< [N] bound of the computed w_tj, relative to size
  bool normalized = true;     ///< whether den_t is their sum
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
/// Of the rounding of an output to T, 0 where sums are kept in T.
template <Scalar T>
inline constexpr double kStorageRoundoff = 0;
template <>
inline constexpr double kStorageRoundoff<Eigen::bfloat16> = 0x1p-8;

/// w_tj = coefficient(j) scale phi(q_t) . phi(k_j), keys with coefficient 0 left out.
/// \param feature  double -> double, phi of one number
/// \param m        roundings of the longest chain
template <Scalar T, class Coefficient, class Feature>
Weights linear_weights(const Inputs<T>& in, Index t, const Coefficient& coefficient,
                       const Feature& feature, double scale, double m) {
  const auto n = static_cast<std::size_t>(in.k.rows);
  Weights w{std::vector<double>(n), std::vector<double>(n),
            std::vector<double>(n, rounding_bound(m, kUnitRoundoff<T>))};
  std::vector<double> q;
  for (Index d = 0; d < in.q.cols; ++d) q.push_back(scale * feature(exactly(in.q(t, d))));
  for (Index j = 0; j < in.k.rows; ++j) {
    const double c = coefficient(j);
    if (c == 0) continue;
    double value = 0, size = 0;
    for (Index d = 0; d < in.k.cols; ++d) {
      const double product = q[static_cast<std::size_t>(d)] * feature(exactly(in.k(j, d)));
      value += product;
      size += std::abs(product);
    }
    w.value[static_cast<std::size_t>(j)] = c * value;
    w.size[static_cast<std::size_t>(j)] = std::abs(c) * size;
  }
  return w;
}

/// w_tj = exp(s_j - max s) of the scores s_j = q_t . k_j / sqrt(D). The error of a score of terms
/// |q k| multiplies the weight by its exponential; subtracting the maximum adds u (max s - s_j),
/// exponentials and sums one rounding each and a few a tile of 64 keys.
template <Scalar T>
Weights softmax_weights(const Inputs<T>& in, Index t) {
  const double u = kUnitRoundoff<T>, keys = static_cast<double>(in.k.rows);
  const double scale =
      exactly(static_cast<accumulator_t<T>>(1 / std::sqrt(static_cast<double>(in.k.cols))));
  const auto one = [](Index) { return 1.0; };
  const auto identity = [](double x) { return x; };
  Weights w = linear_weights(in, t, one, identity, scale, static_cast<double>(in.k.cols + 1));
  const double largest = *std::max_element(w.value.begin(), w.value.end());
  const double sums = rounding_bound(keys + 4 * (keys / 64 + 1) + 6, u);
  for (std::size_t j = 0; j < w.value.size(); ++j) {
    const double below = largest - w.value[j];
    w.error[j] = std::expm1(w.error[j] * w.size[j] + u * below + sums);
    w.value[j] = w.size[j] = std::exp(-below);
  }
  return w;
}

/// The row that the weights make of the values.
template <Scalar T>
ExactRow weigh(const Weights& w, MatrixView<const T> v) {
  const auto width = static_cast<std::size_t>(v.cols);
  ExactRow row{std::vector<double>(width), std::vector<double>(width)};
  double den = 0, den_error = 0;
  for (Index j = 0; j < v.rows; ++j) {
    const auto i = static_cast<std::size_t>(j);
    if (w.size[i] == 0) continue;
    const double error = w.error[i] * w.size[i];
    den += w.value[i];
    den_error += error;
    for (std::size_t e = 0; e < width; ++e) {
      const double value = exactly(v(j, static_cast<Index>(e)));
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

/// Largest error over bound of a computed row; infinite where it is not a number.
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
