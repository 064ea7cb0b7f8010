#pragma once

/// \file
/// Gradients by their definitions, in double, for sampled tokens, and how far computed ones may be
/// off. They share no code with the library's forms. With c the coefficient of the blocks of query
/// t and key j, y_t the gradient of o_t, and sums over the keys that t reads:
///
///     p_tj  = scale phi(q_t) . phi(k_j),   o_t = sum_j a_tj v_j,   a_tj = c p_tj / den_t
///     x_tj  = (y_t . v_j - delta_t) / den_t,   delta_t = y_t . o_t    (1 and 0 without normaliser)
///     dq_t  = phi'(q_t) scale sum_j c x_tj phi(k_j),   dk_j likewise over the queries t
///     dv_j  = sum_t a_tj y_t,   dm_ib = sum_tj p_tj x_tj of the blocks i and b of all heads
///
/// Softmax: a_tj = exp(p_tj - max) / den_t with phi the identity, and a_tj x_tj in place of x_tj.
/// delta_t comes from block summaries where every query of a block reads the same keys: N*D*E and
/// M^2*D*E flops a head. Elsewhere it is summed over all pairs of tokens.
///
/// Bounds: with g(m) = rounding_bound(m, u), every product in the fully expanded sums carries at
/// most 2*L + D + E + 16 roundings, L those of a summary and its mixture, and one or two divisions
/// by den_t, which is off by g(L + D + 6): its terms are all positive. A division is off by the
/// same for all terms of a query, so with
///
///     r = g(2 L + D + E + 16) (1 + s),   s = 1 / (1 - g(L + D + 6))^2 - 1
///
/// a_tj is off by r + s of its size, and x_tj by r of the sum of its absolute values and s of what
/// is left of it, |x_tj| + |delta_t / den_t|. |y_t| . max |v| stands for the absolute values of
/// delta_t. dm_ib is an inner product of two computed matrices, S_b and dS~_i: errors of either
/// times the other, and of the sum itself.

#include <functional>
#include <utility>

#include "mhla/gradient/gradients.hpp"
#include "support/definition.hpp"

namespace mhla::bench {

/// What a form computes.
struct GradientRule {
  std::vector<std::vector<Index>> blocks;           ///< the tokens of each block
  std::function<double(Index, Index)> coefficient;  ///< of query block i and key block b
  std::function<double(double)> feature = [](double x) { return x; };
  std::function<double(double)> slope = [](double) { return 1.0; };  ///< of the feature
  double scale = 1;
  double chain = 0;        ///< L
  bool causal = false;     ///< whether query t reads keys 0..t only
  bool normalized = true;  ///< features and coefficients are not negative then
  bool softmax = false;

  bool reads(Index i, Index b) const { return !(causal && b > i) && coefficient(i, b) != 0; }
};

/// A number of the definition, and its bound.
struct ExactNumber {
  double value = 0;
  double bound = 0;
};

/// The gradients of one head.
template <Scalar T>
class ExactGradient {
  using Table = Matrix<double>;
  using Array = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Column = Eigen::ArrayXd;
  using Tokens = std::vector<Index>;

 public:
  ExactGradient(const GradientRule& rule, const Inputs<T>& in, MatrixView<const T> dout)
      : rule_(rule),
        in_(in),
        dout_(dout),
        places_(static_cast<std::size_t>(in.q.rows)),
        terms_(rule.blocks.size()),
        summaries_(rule.blocks.size()) {
    for (std::size_t b = 0; b < rule.blocks.size(); ++b) {
      const Tokens& tokens = rule.blocks[b];
      for (std::size_t r = 0; r < tokens.size(); ++r) {
        places_[static_cast<std::size_t>(tokens[r])] = {static_cast<Index>(b),
                                                        static_cast<Index>(r)};
      }
    }
    for (Index j = 0; j < in.v.rows; ++j) {
      for (Index e = 0; e < in.v.cols; ++e) {
        largest_value_ = std::max(largest_value_, std::abs(exactly(in.v(j, e))));
      }
    }
    const double width = static_cast<double>(in.q.cols), values = static_cast<double>(in.v.cols);
    const double den = rounded(rule.chain + width + 6);
    division_ = 1 / ((1 - den) * (1 - den)) - 1;
    rounding_ = rounded(2 * rule.chain + width + values + 16) * (1 + division_);
  }

  ExactRow dq(Index t) {
    const auto [i, place] = places_[static_cast<std::size_t>(t)];
    const Queries queries = queries_of({t}, terms(i).row(place));
    Sum sum(in_.q.cols);
    for (Index b = 0; b < blocks(); ++b) {
      if (!rule_.reads(i, b)) continue;
      const Keys keys = keys_of(tokens(b));
      const Pairs p = pairs(queries, keys);
      sum.add(rule_.coefficient(i, b), p.slope, p.slope_error, keys.features);
    }
    return feature_row(sum, in_.q, t);
  }

  /// Rows j of dk and dv.
  std::pair<ExactRow, ExactRow> dk_and_dv(Index j) {
    const Index b = places_[static_cast<std::size_t>(j)].first;
    const Keys keys = keys_of({j});
    Sum dk(in_.k.cols), dv(in_.v.cols);
    for (Index i = 0; i < blocks(); ++i) {
      if (!rule_.reads(i, b)) continue;
      const Queries queries = queries_of(tokens(i), terms(i));
      const Pairs p = pairs(queries, keys);
      const double c = rule_.coefficient(i, b);
      dk.add(c, p.slope.transpose(), p.slope_error.transpose(), queries.features);
      dv.add(c, p.weight.transpose(), p.weight_error.transpose(), queries.dout);
    }
    return {feature_row(dk, in_.k, j), stored(exact_row(dv))};
  }

  /// What this head adds to dm_ib. The bound is without the sum over heads.
  ExactNumber dmixing(Index i, Index b) {
    const Queries queries = queries_of(tokens(i), terms(i));
    const Keys keys = keys_of(tokens(b));
    if (rule_.causal && i == b) {
      const Pairs p = pairs(queries, keys);
      return inner(p.score, rounded(static_cast<double>(in_.q.cols) + 4) * p.score_size, p.slope,
                   p.slope_error);
    }
    const Terms& of = queries.terms;
    Table dn(queries.dout.rows(), queries.dout.cols() + 1), error(dn.rows(), dn.cols());
    dn << queries.dout, -of.delta.matrix();
    error << (rounding_ + division_) * queries.dout.cwiseAbs(),
        (rounding_ * of.delta_size + division_ * of.delta.abs()).matrix();
    dn.array().colwise() /= of.den;
    error.array().colwise() /= of.den;
    const Table& q = queries.features;
    const Table values = with_ones(keys.values);
    return inner((keys.features.transpose() * values).array(),
                 rounded(rule_.chain + 6) *
                     (keys.features.cwiseAbs().transpose() * values.cwiseAbs()).array(),
                 rule_.scale * (q.transpose() * dn).array(),
                 rule_.scale * (q.cwiseAbs().transpose() * error).array());
  }

 private:
  /// Of queries: [queries] each.
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
    Column delta_size;          // at least the sum of absolute values; softmax: its error
    Column largest, den_error;  // of softmax: max p_tj, and the relative error of den
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
  /// [queries, keys], without coefficients; 0 where a query does not read a key.
  struct Pairs {
    Array score, score_size;     // p_tj
    Array weight, weight_error;  // a_tj
    Array slope, slope_error;    // x_tj
  };
  /// A weighted sum of rows, and the bound of its error.   // [1,width]
  struct Sum {
    explicit Sum(Index width) : value(Table::Zero(1, width)), bound(value) {}
    void add(double c, const Array& factors, const Array& errors, const Table& rows) {
      value += c * (factors.matrix() * rows);
      bound += std::abs(c) * (errors.matrix() * rows.cwiseAbs());
    }
    Table value, bound;
  };

  static double rounded(double m) { return rounding_bound(m, kUnitRoundoff<T>); }
  Index blocks() const { return static_cast<Index>(rule_.blocks.size()); }
  const Tokens& tokens(Index b) const { return rule_.blocks[static_cast<std::size_t>(b)]; }

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

  static Table with_ones(const Table& values) {
    Table wide(values.rows(), values.cols() + 1);
    wide << values, Table::Ones(values.rows(), 1);
    return wide;
  }
  /// S_b and z_b side by side.   // [D,E+1]
  const Table& summary(Index b) {
    Table& s = summaries_[static_cast<std::size_t>(b)];
    if (s.size() == 0) {
      const Keys keys = keys_of(tokens(b));
      s = keys.features.transpose() * with_ones(keys.values);
    }
    return s;
  }

  const Terms& terms(Index i) {
    Terms& found = terms_[static_cast<std::size_t>(i)];
    if (found.den.size() > 0) return found;
    Queries queries = queries_of(tokens(i), Terms(static_cast<Index>(tokens(i).size())));
    Terms& t = queries.terms;
    if (rule_.softmax) {
      sum_exponentials(queries);
    } else if (rule_.normalized && rule_.causal) {
      sum_pairs(i, queries);
    } else if (rule_.normalized) {
      Table mixture = Table::Zero(in_.q.cols, in_.v.cols + 1);
      for (Index b = 0; b < blocks(); ++b) {
        if (rule_.reads(i, b)) mixture += rule_.coefficient(i, b) * summary(b);
      }
      const Table out = rule_.scale * (queries.features * mixture);
      t.den = out.col(in_.v.cols).array();
      t.delta = dots(out.leftCols(in_.v.cols), queries.dout) / t.den;
    }
    if (rule_.normalized) {
      t.delta_size = largest_value_ * queries.dout.cwiseAbs().rowwise().sum().array();
    }
    if (rule_.softmax) {  // sum_j a_tj (y_t . v_j), its weights off by twice den_error
      const Column twice = 2 * t.den_error / (1 - t.den_error);
      t.delta_size *= (1 + twice) * (1 + rounded(sums())) - 1;
    }
    return found = t;
  }
  static Column dots(const Table& a, const Table& b) {
    return a.cwiseProduct(b).rowwise().sum().array();
  }
  /// den and delta of queries that read single keys of their block.
  void sum_pairs(Index i, Queries& queries) const {
    Terms sums = queries.terms;
    sums.den.setZero();
    for (Index b = 0; b < blocks(); ++b) {
      if (!rule_.reads(i, b)) continue;
      const Keys keys = keys_of(tokens(b));
      const Array weights = rule_.coefficient(i, b) * pairs(queries, keys).score;
      sums.den += weights.rowwise().sum();
      sums.delta += dots(weights.matrix(), queries.dout * keys.values.transpose());
    }
    sums.delta /= sums.den;
    queries.terms = sums;
  }
  /// The same of softmax, and the largest scores.
  void sum_exponentials(Queries& queries) const {
    Terms sums = queries.terms;
    sums.den.setZero();
    sums.largest.setConstant(-std::numeric_limits<double>::infinity());
    for (Index b = 0; b < blocks(); ++b) {
      const Column of_block = pairs(queries, keys_of(tokens(b))).score.rowwise().maxCoeff();
      sums.largest = sums.largest.max(of_block);
    }
    queries.terms.largest = sums.largest;
    for (Index b = 0; b < blocks(); ++b) {
      const Keys keys = keys_of(tokens(b));
      const Pairs p = pairs(queries, keys);  // den is 1
      sums.den += p.weight.rowwise().sum();
      sums.den_error += p.weight_error.rowwise().sum();
      sums.delta += dots(p.weight.matrix(), queries.dout * keys.values.transpose());
    }
    sums.delta /= sums.den;
    sums.den_error /= sums.den;
    queries.terms = sums;
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
  /// An error of a score multiplies the exponential by its own; see softmax_weights.
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
  /// Roundings of a sum of softmax over all tokens.
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

  /// sum a b of matrices that are off by at most those errors.
  static ExactNumber inner(const Array& a, const Array& a_error, const Array& b,
                           const Array& b_error) {
    const Array a_size = a.abs() + a_error, b_size = b.abs() + b_error;
    return {(a * b).sum(), (a_error * b_size + a.abs() * b_error).sum() +
                               rounded(static_cast<double>(a.size())) * (a_size * b_size).sum()};
  }
  /// The gradient of a row of features, which are functions of row t of x.
  ExactRow feature_row(const Sum& sum, MatrixView<const T> x, Index t) const {
    ExactRow row = exact_row(sum);
    for (Index d = 0; d < x.cols; ++d) {
      const double factor = rule_.scale * rule_.slope(exactly(x(t, d)));
      row.value[static_cast<std::size_t>(d)] *= factor;
      row.bound[static_cast<std::size_t>(d)] *= std::abs(factor);
    }
    return stored(row);
  }
  static ExactRow exact_row(const Sum& sum) {
    const auto numbers = [](const Table& x) {
      return std::vector<double>(x.data(), x.data() + x.size());
    };
    return {numbers(sum.value), numbers(sum.bound)};
  }
  /// With the rounding to T, and what an underflow may lose.
  static ExactRow stored(ExactRow row) {
    for (std::size_t d = 0; d < row.value.size(); ++d) {
      row.bound[d] += kStorageRoundoff<T> * (std::abs(row.value[d]) + row.bound[d]) +
                      static_cast<double>(std::numeric_limits<float>::min());
    }
    return row;
  }

  const GradientRule& rule_;
  Inputs<T> in_;
  MatrixView<const T> dout_;
  std::vector<std::pair<Index, Index>> places_;  // [N] block and place in it of every token
  std::vector<Terms> terms_;                     // [M] of the blocks that were asked for
  std::vector<Table> summaries_;                 // [M] likewise
  double largest_value_ = 0;                     // max |v|
  double rounding_, division_;                   // r, s
};

}  // namespace mhla::bench
