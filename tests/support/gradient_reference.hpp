#pragma once

/// \file
/// The gradient of the naive form, written out term by term in a scalar of your choice.
///
/// With w = dout, dN_t = w_t / den_t and dden_t = -(w_t . o_t) / den_t:
///
///     dA_tj = dN_t . v_j (+ dden_t for a KeySum over the same q and k)
///     dq_t += m dA_tj k_j     dk_j += m dA_tj q_t     dm += dA_tj (q_t . k_j)
///     dv_j += A_tj dN_t
///
/// and the same with dden_t over the queries and keys of the denominator; those of CrossQuery are
/// every query u in the slot of t and every key of the block of u. Then the feature maps.
/// In Terms it also gives the size of every element (gradient_terms.hpp).

#include <vector>

#include "support/gradient_problem.hpp"

namespace mhla::test {

/// Adds J^T dy of a map at x to dx, and its weights' gradient to dweights.
template <class W, class A>
void wide_adjoint(const AnyMap<A>& any, const std::vector<W>& x, const std::vector<W>& weights,
                  const std::vector<W>& dy, W* dx, std::vector<W>& dweights) {
  const std::size_t d = x.size();
  const W zero(0);
  const std::vector<W> y = wide_features(any, x, weights);
  const auto positive = [&](const W& a) { return zero < a; };
  // What the gradient du of a layer's outputs gives, the layer's weights starting at `begin`.
  const auto layer = [&](std::size_t begin, bool bias, const std::vector<W>& du) {
    for (std::size_t j = 0; j < d; ++j) {
      for (std::size_t i = 0; i < d; ++i) {
        dx[i] += weights[begin + j * d + i] * du[j];
        dweights[begin + j * d + i] += x[i] * du[j];
      }
      if (bias) dweights[begin + d * d + j] += du[j];
    }
  };
  const auto output = [&](std::size_t begin, bool bias, std::size_t j) {
    W sum = bias ? weights[begin + d * d + j] : zero;
    for (std::size_t i = 0; i < d; ++i) sum += weights[begin + j * d + i] * x[i];
    return sum;
  };
  if (std::holds_alternative<Relu>(any.map)) {
    for (std::size_t i = 0; i < d; ++i) dx[i] += positive(x[i]) ? dy[i] : zero;
  } else if (std::holds_alternative<EluPlusOne>(any.map)) {
    for (std::size_t i = 0; i < d; ++i) dx[i] += positive(x[i]) ? dy[i] : y[i] * dy[i];
  } else if (std::holds_alternative<Identity>(any.map)) {
    for (std::size_t i = 0; i < d; ++i) dx[i] += dy[i];
  } else if (std::holds_alternative<Exp>(any.map)) {
    for (std::size_t i = 0; i < d; ++i) dx[i] += y[i] * dy[i];
  } else if (std::holds_alternative<T2R<A>>(any.map)) {
    std::vector<W> du(d, zero);
    for (std::size_t j = 0; j < d; ++j) du[j] = positive(y[j]) ? dy[j] : zero;
    layer(0, false, du);
  } else if (const auto* product = std::get_if<ElementwiseProduct<A>>(&any.map)) {
    const bool bias1 = product->first().bias.size() > 0, bias2 = product->second().bias.size() > 0;
    const std::size_t second = d * d + (bias1 ? d : 0);
    std::vector<W> da(d, zero), db(d, zero);
    for (std::size_t j = 0; j < d; ++j) {
      da[j] = dy[j] * output(second, bias2, j);
      db[j] = dy[j] * output(0, bias1, j);
    }
    layer(0, bias1, da);
    layer(second, bias2, db);
  } else if (const auto* hedgehog = std::get_if<Hedgehog<A>>(&any.map)) {
    W mean = zero;
    for (std::size_t i = 0; i < 2 * d; ++i) mean += y[i] * dy[i];
    std::vector<W> du(d, zero);
    for (std::size_t j = 0; j < d; ++j) {
      du[j] = W(2) * (y[j] * (dy[j] - mean) - y[d + j] * (dy[d + j] - mean));
    }
    layer(0, hedgehog->dense().bias.size() > 0, du);
  } else {
    std::vector<W> u, du(2 * d, zero);
    for (const W& a : x) u.push_back(positive(a) ? a : zero);
    for (std::size_t i = 0; i < d; ++i) u.push_back(zero - u[i]);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      const std::size_t j = i / (2 * d) + 1, place = i % (2 * d);
      const std::size_t rolled = (place + 2 * d * j - j) % (2 * d);
      du[place] += dy[i] * u[rolled];
      du[rolled] += dy[i] * u[place];
    }
    for (std::size_t i = 0; i < d; ++i) {
      if (positive(x[i])) dx[i] += du[i] - du[d + i];
    }
  }
}

namespace reference_detail {

/// Takes the gradient of factor * phi(x) to x and to the weights, row by row.
template <class W, class A>
Matrix<W> adjoint_rows(const AnyMap<A>& map, const Matrix<W>& x, const std::vector<W>& weights,
                       const W& factor, const Matrix<W>& dy, std::vector<W>& dweights) {
  Matrix<W> dx = Matrix<W>::Constant(x.rows(), x.cols(), W(0));
  for (Index t = 0; t < x.rows(); ++t) {
    std::vector<W> row(x.data() + t * x.cols(), x.data() + (t + 1) * x.cols()), slope;
    for (Index j = 0; j < dy.cols(); ++j) slope.push_back(factor * dy(t, j));
    wide_adjoint(map, row, weights, slope, dx.data() + t * dx.cols(), dweights);
  }
  return dx;
}

/// Row a += factor * row b.
template <class W>
void add_row(Matrix<W>& a, Index row_a, const W& factor, const Matrix<W>& b, Index row_b) {
  for (Index d = 0; d < a.cols(); ++d) a(row_a, d) += factor * b(row_b, d);
}

}  // namespace reference_detail

/// The gradient of sum_t dout_t . o_t at the point `x`; rows of dout of masked queries are not
/// read.
template <class W, class T>
Variables<W> dense_gradient(const Problem<T>& p, const Variables<W>& x, const Matrix<W>& dout) {
  using namespace naive_detail;
  using reference_detail::add_row;
  const NaiveProblem<W> n = naive_at(p, x);
  const bool own = p.has_own_normalizer();
  const auto zeros = [](const Matrix<W>& m) {
    return Matrix<W>(Matrix<W>::Constant(m.rows(), m.cols(), W(0)));
  };
  Matrix<W> dq = zeros(n.q), dk = zeros(n.k), dv = zeros(n.v), dm = zeros(n.mixing);
  Matrix<W> own_dq = zeros(n.normalizer_q), own_dk = zeros(n.normalizer_k);
  const Matrix<W>&zq = own ? n.normalizer_q : n.q, &zk = own ? n.normalizer_k : n.k;
  Matrix<W>&dzq = own ? own_dq : dq, &dzk = own ? own_dk : dk;
  const Matrix<W> out = naive_attention(n), den = naive_denominators(n);
  // One term m q_u . k_j of query t with the derivative dterm, from the given features.
  const auto term = [&](Index t, Index u, Index j, const W& dterm, const Matrix<W>& q,
                        const Matrix<W>& k, Matrix<W>& to_q, Matrix<W>& to_k) {
    const Index i = at(n.query_block, t), b = at(n.key_block, j);
    const W factor = n.mixing(i, b) * dterm;
    add_row(to_q, u, factor, k, j);
    add_row(to_k, j, factor, q, u);
    dm(i, b) += dterm * inner(q, u, k, j);
  };
  for (Index t = 0; t < n.q.rows(); ++t) {
    if (!kept(n.query_kept, t)) continue;
    std::vector<W> dn;
    W dden(0);
    for (Index e = 0; e < dout.cols(); ++e) {
      dn.push_back(dout(t, e) / den(t, 0));
      dden -= dout(t, e) * out(t, e);
    }
    dden /= den(t, 0);
    for (Index j = 0; j < n.k.rows(); ++j) {
      if (!kept(n.key_kept, j) || (n.causal && j > t)) continue;
      const W a = n.mixing(at(n.query_block, t), at(n.key_block, j)) * inner(n.q, t, n.k, j);
      W da(0);
      for (Index e = 0; e < dout.cols(); ++e) {
        da += dn[static_cast<std::size_t>(e)] * n.v(j, e);
        dv(j, e) += a * dn[static_cast<std::size_t>(e)];
      }
      term(t, t, j, da, n.q, n.k, dq, dk);
      if (n.normalizer == NaiveNormalizer::kKeySum) term(t, t, j, dden, zq, zk, dzq, dzk);
    }
    if (n.normalizer != NaiveNormalizer::kCrossQuery) continue;
    for (Index u = 0; u < n.q.rows(); ++u) {
      if (!kept(n.query_kept, u) || at(n.query_slot, u) != at(n.query_slot, t)) continue;
      for (Index j = 0; j < n.k.rows(); ++j) {
        if (!kept(n.key_kept, j) || at(n.key_block, j) != at(n.query_block, u)) continue;
        term(t, u, j, dden, zq, zk, dzq, dzk);
      }
    }
  }
  const W scale(static_cast<double>(static_cast<accumulator_t<T>>(p.scale)));
  Variables<W> g;
  g.query_weights.assign(x.query_weights.size(), W(0));
  g.key_weights.assign(x.key_weights.size(), W(0));
  const auto back = [&](const AnyMap<accumulator_t<T>>& map, const Matrix<W>& rows,
                        const std::vector<W>& weights, const W& factor, const Matrix<W>& dy,
                        std::vector<W>& dweights) {
    return reference_detail::adjoint_rows(map, rows, weights, factor, dy, dweights);
  };
  g.q = back(p.query_map, x.q, x.query_weights, scale, dq, g.query_weights);
  g.k = back(p.key_map, x.k, x.key_weights, W(1), dk, g.key_weights);
  if (own) {
    g.normalizer_q =
        back(p.query_map, x.normalizer_q, x.query_weights, scale, own_dq, g.query_weights);
    g.normalizer_k = back(p.key_map, x.normalizer_k, x.key_weights, W(1), own_dk, g.key_weights);
  }
  g.v = dv;
  g.mixing = dm;
  return g;
}

}  // namespace mhla::test
