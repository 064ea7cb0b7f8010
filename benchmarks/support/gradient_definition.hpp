#pragma once

/// \file
/// Gradients by their definitions, in double, for sampled tokens, and the bounds of computed
/// gradients. They share no code with the library's forms. c is the coefficient of the blocks of
/// query t and key j, y_t the gradient of o_t. Sums are over the keys that t reads:
///
///     p_tj  = scale phi(q_t) . phi(k_j),   o_t = sum_j a_tj v_j,   a_tj = c p_tj / den_t
///     x_tj  = (y_t . v_j - delta_t) / den_t,   delta_t = y_t . o_t    (1 and 0 without normaliser)
///     dq_t  = phi'(q_t) scale sum_j c x_tj phi(k_j),   dk_j likewise over the queries t
///     dv_j  = sum_t a_tj y_t,   dm_ib = sum_tj p_tj x_tj of the blocks i and b of all heads
///
/// Softmax: a_tj = exp(p_tj - max) / den_t with phi the identity, and a_tj x_tj in place of x_tj.
/// Block summaries give delta_t if all queries of a block read the same keys: N*D*E and M^2*D*E
/// flops per head. Otherwise delta_t is summed over all pairs of tokens.

#include <utility>

#include "mhla/gradient/gradients.hpp"
#include "support/gradient_pairs.hpp"

namespace mhla::bench {

/// A number of the definition, and its bound.
struct ExactNumber {
  double value = 0;
  double bound = 0;
};

/// The gradients of one head.
template <Scalar T>
class ExactGradient : GradientPairs<T> {
  using Of = GradientPairs<T>;
  using Of::rounded, Of::sums, Of::queries_of, Of::keys_of, Of::pairs;
  using Of::rule_, Of::in_, Of::division_, Of::rounding_;
  using typename Of::Array, typename Of::Column, typename Of::Keys, typename Of::Pairs;
  using typename Of::Queries, typename Of::Table, typename Of::Terms, typename Of::Tokens;

 public:
  ExactGradient(const GradientRule& rule, const Inputs<T>& in, MatrixView<const T> dout)
      : Of(rule, in, dout),
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

  /// This head's term of dm_ib. The bound does not include the sum over heads.
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
  /// A weighted sum of rows, and the bound of its error.   // [1,width]
  struct Sum {
    explicit Sum(Index width) : value(Table::Zero(1, width)), bound(value) {}
    void add(double c, const Array& factors, const Array& errors, const Table& rows) {
      value += c * (factors.matrix() * rows);
      bound += std::abs(c) * (errors.matrix() * rows.cwiseAbs());
    }
    Table value, bound;
  };

  Index blocks() const { return static_cast<Index>(rule_.blocks.size()); }
  const Tokens& tokens(Index b) const { return rule_.blocks[static_cast<std::size_t>(b)]; }

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
    if (rule_.softmax) {  // sum_j a_tj (y_t . v_j); the error of a weight is twice den_error
      const Column twice = 2 * t.den_error / (1 - t.den_error);
      t.delta_size *= (1 + twice) * (1 + rounded(sums())) - 1;
    }
    return found = t;
  }
  static Column dots(const Table& a, const Table& b) {
    return a.cwiseProduct(b).rowwise().sum().array();
  }
  /// Sets den and delta, summed over pairs of tokens: a causal query reads part of its block.
  void sum_pairs(Index i, Queries& queries) const {
    Terms totals = queries.terms;
    totals.den.setZero();
    for (Index b = 0; b < blocks(); ++b) {
      if (!rule_.reads(i, b)) continue;
      const Keys keys = keys_of(tokens(b));
      const Array weights = rule_.coefficient(i, b) * pairs(queries, keys).score;
      totals.den += weights.rowwise().sum();
      totals.delta += dots(weights.matrix(), queries.dout * keys.values.transpose());
    }
    totals.delta /= totals.den;
    queries.terms = totals;
  }
  /// Sets den, delta and the largest scores of softmax.
  void sum_exponentials(Queries& queries) const {
    Terms totals = queries.terms;
    totals.den.setZero();
    totals.largest.setConstant(-std::numeric_limits<double>::infinity());
    for (Index b = 0; b < blocks(); ++b) {
      const Column of_block = pairs(queries, keys_of(tokens(b))).score.rowwise().maxCoeff();
      totals.largest = totals.largest.max(of_block);
    }
    queries.terms.largest = totals.largest;
    for (Index b = 0; b < blocks(); ++b) {
      const Keys keys = keys_of(tokens(b));
      const Pairs p = pairs(queries, keys);  // den is 1
      totals.den += p.weight.rowwise().sum();
      totals.den_error += p.weight_error.rowwise().sum();
      totals.delta += dots(p.weight.matrix(), queries.dout * keys.values.transpose());
    }
    totals.delta /= totals.den;
    totals.den_error /= totals.den;
    queries.terms = totals;
  }

  /// Sum of the products of elements of a and b, whose elements have at most the given errors.
  static ExactNumber inner(const Array& a, const Array& a_error, const Array& b,
                           const Array& b_error) {
    const Array a_size = a.abs() + a_error, b_size = b.abs() + b_error;
    return {(a * b).sum(), (a_error * b_size + a.abs() * b_error).sum() +
                               rounded(static_cast<double>(a.size())) * (a_size * b_size).sum()};
  }
  /// Row t of dx, from the gradient `sum` of the features of that row.
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
  /// Adds the rounding to T and a possible underflow to the bound.
  static ExactRow stored(ExactRow row) {
    for (std::size_t d = 0; d < row.value.size(); ++d) {
      row.bound[d] += kStorageRoundoff<T> * (std::abs(row.value[d]) + row.bound[d]) +
                      static_cast<double>(std::numeric_limits<float>::min());
    }
    return row;
  }

  std::vector<std::pair<Index, Index>> places_;  // [N] block of every token, and its place there
  std::vector<Terms> terms_;                     // [M] computed on first use
  std::vector<Table> summaries_;                 // [M] computed on first use
  double largest_value_ = 0;                     // max |v|
};

}  // namespace mhla::bench
