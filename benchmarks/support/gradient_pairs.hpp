#pragma once

/// \file
/// Terms of the definitions of gradients for pairs of tokens, and the bounds of their errors.
/// Symbols are those of gradient_definition.hpp.
///
/// Bounds use g(m) = rounding_bound(m, u). Every product in the fully expanded sums has at most
/// 2*L + D + E + 16 roundings, where L is the roundings of a summary and its mixture. It also has
/// one or two divisions by den_t, whose error is g(L + D + 6) because all its terms are positive.
/// All terms of a query share the error of a division, so with
///
///     r = g(2 L + D + E + 16) (1 + s),   s = 1 / (1 - g(L + D + 6))^2 - 1
///
/// the error of a_tj is at most (r + s) |a_tj|. The error of x_tj is at most r times the sum of the
/// absolute values of its terms, plus s (|x_tj| + |delta_t / den_t|). The product |y_t| . max |v|
/// bounds the absolute values of delta_t. The matrices S_b and dS~_i have the inner product dm_ib:
/// its bound has the error of each matrix times the other, and the error of the sum.

#include <functional>

#include "support/definition.hpp"

namespace mhla::bench {

/// The definition of a form, for its gradients.
struct GradientRule {
  std::vector<std::vector<Index>> blocks;           ///< the tokens of each block
  std::function<double(Index, Index)> coefficient;  ///< m_ib of query block i and key block b
  std::function<double(double)> feature = [](double x) { return x; };
  std::function<double(double)> slope = [](double) { return 1.0; };  ///< derivative of feature
  double scale = 1;
  double chain = 0;        ///< L
  bool causal = false;     ///< query t reads keys 0..t only
  bool normalized = true;  ///< requires features and coefficients of at least 0
  bool softmax = false;

  bool reads(Index i, Index b) const { return !(causal && b > i) && coefficient(i, b) != 0; }
};

/// Scores, weights and slopes of the tokens of one head.
template <Scalar T>
class GradientPairs {
 protected:
  using Table = Matrix<double>;
  using Array = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Column = Eigen::ArrayXd;
  using Tokens = std::vector<Index>;

  /// Terms of queries, [queries] each.
  struct Terms {
    explicit Terms(Index queries = 0)
        : den(Column::Ones(queries)),
          delta(Column::Zero(queries)),
          delta_size(delta),
          largest(delta),
          den_error(delta) {}
    Terms row(Index r) const {
      Terms one(1);
      one.den(0) = den(r), one.delta(0) = delta(r), one.delta_size(0) = delta_size(r);
      one.largest(0) = largest(r), one.den_error(0) = den_error(r);
      return one;
    }
    Column den, delta;
    Column delta_size;          // at least the sum of absolute values; softmax: the error of delta
    Column largest, den_error;  // softmax: max p_tj, and the relative error of den
  };
  struct Queries {
    Tokens tokens;
    Table features, dout;
    Terms terms;
  };
  struct Keys {
    Tokens tokens;
    Table features, values;
  };
  /// Terms of pairs [queries, keys], without coefficients; 0 if the query does not read the key.
  struct Pairs {
    Array score, score_size;     // p_tj
    Array weight, weight_error;  // a_tj
    Array slope, slope_error;    // x_tj
  };

  GradientPairs(const GradientRule& rule, const Inputs<T>& in, MatrixView<const T> dout)
      : rule_(rule), in_(in), dout_(dout) {
    const double width = static_cast<double>(in.q.cols), values = static_cast<double>(in.v.cols);
    const double den = rounded(rule.chain + width + 6);
    division_ = 1 / ((1 - den) * (1 - den)) - 1;
    rounding_ = rounded(2 * rule.chain + width + values + 16) * (1 + division_);
  }

  static double rounded(double m) { return rounding_bound(m, kUnitRoundoff<T>); }
  template <class F>
  static Table gather(MatrixView<const T> x, const Tokens& tokens, const F& f) {
    Table rows(static_cast<Index>(tokens.size()), x.cols);
    for (Index r = 0; r < rows.rows(); ++r) {
      const Index t = tokens[static_cast<std::size_t>(r)];
      for (Index c = 0; c < x.cols; ++c) rows(r, c) = f(exactly(x(t, c)));
    }
    return rows;
  }
  Queries queries_of(const Tokens& tokens, const Terms& terms) const {
    return {tokens, gather(in_.q, tokens, rule_.feature), gather(dout_, tokens, std::identity()),
            terms};
  }
  Keys keys_of(const Tokens& tokens) const {
    return {tokens, gather(in_.k, tokens, rule_.feature), gather(in_.v, tokens, std::identity())};
  }

  Pairs pairs(const Queries& q, const Keys& k) const {
    Pairs p;
    const Table keys = k.features.transpose(), values = k.values.transpose();
    p.score = rule_.scale * (q.features * keys).array();
    p.score_size = rule_.scale * (q.features.cwiseAbs() * keys.cwiseAbs()).array();
    Array dot = (q.dout * values).array(),
          dot_size = (q.dout.cwiseAbs() * values.cwiseAbs()).array();
    dot.colwise() -= q.terms.delta;
    if (rule_.softmax) {
      weigh_exponentials(q.terms, dot, dot_size, p);
    } else {
      const Column reciprocal = 1 / q.terms.den;
      dot_size.colwise() += q.terms.delta_size;
      p.weight = p.score.colwise() * reciprocal;
      p.weight_error = (rounding_ + division_) * (p.score_size.colwise() * reciprocal);
      p.slope = dot.colwise() * reciprocal;
      Array error = rounding_ * dot_size + division_ * dot.abs();
      error.colwise() += division_ * q.terms.delta.abs();
      p.slope_error = error.colwise() * reciprocal;
    }
    if (rule_.causal) drop_later_keys(q.tokens, k.tokens, p);
    return p;
  }
  /// Sets weight and slope of softmax. An error of a score multiplies the weight by the exponential
  /// of the error (softmax_weights).
  void weigh_exponentials(const Terms& terms, const Array& dot, const Array& dot_size,
                          Pairs& p) const {
    const Array below = -(p.score.colwise() - terms.largest);
    const Array of_score = rounded(static_cast<double>(in_.q.cols + 1)) * p.score_size +
                           kUnitRoundoff<T> * below + rounded(sums());
    Array error = of_score * (1 + of_score);  // at least exp - 1 of errors below 1
    error.colwise() += terms.den_error;
    error.colwise() /= 1 - terms.den_error;
    error = (1 + error) * (1 + rounded(sums())) - 1;
    p.weight = (-below).exp().colwise() / terms.den;
    p.weight_error = p.weight * error;
    p.slope = p.weight * dot;
    Array of_dot = rounded(static_cast<double>(in_.v.cols + 2)) * dot_size;
    of_dot.colwise() += terms.delta_size;
    p.slope_error = p.weight * (error * dot.abs() + (1 + error) * of_dot);
  }
  /// Roundings of softmax's sum over all tokens.
  double sums() const {
    const auto n = static_cast<double>(in_.k.rows);
    return n + 4 * (n / 64 + 1) + static_cast<double>(in_.v.cols) + 8;
  }
  static void drop_later_keys(const Tokens& queries, const Tokens& keys, Pairs& p) {
    for (std::size_t r = 0; r < queries.size(); ++r) {
      for (std::size_t c = 0; c < keys.size(); ++c) {
        if (keys[c] <= queries[r]) continue;
        for (Array* const x :
             {&p.score, &p.score_size, &p.weight, &p.weight_error, &p.slope, &p.slope_error}) {
          (*x)(static_cast<Index>(r), static_cast<Index>(c)) = 0;
        }
      }
    }
  }

  const GradientRule& rule_;
  Inputs<T> in_;
  MatrixView<const T> dout_;
  double rounding_, division_;  // r, s
};

}  // namespace mhla::bench
