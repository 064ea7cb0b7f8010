#pragma once

/// \file
/// The definition of tangents, in plain loops; every tangent form must equal it. Numerators and
/// weight sums of naive_attention are linear in the mixing matrix, in q, in k and in v. So each
/// tangent is a sum of definitions, in which one factor is replaced by its direction:
///
///     A'  = A(m', q, k) + A(m, q', k) + A(m, q, k')                  r' likewise
///     n'  = A' v + A v'
///     o'  = (n' - den'(r) r' o) / den                                0 where den = 0
///
/// q' and k' are tangents of features, in the directions of the tensors and of the maps' weights.
/// Cost: five times naive_attention. Source: the product and the quotient rule.

#include <span>
#include <type_traits>

#include "mhla/attention/naive.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/normalizer.hpp"
#include "mhla/tangent/tangents.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Directions of the numbers of a NaiveProblem; an empty matrix counts as zeros.
template <class W>
struct NaiveDirection {
  Matrix<W> q{}, k{};  ///< of features
  Matrix<W> v{};
  Matrix<W> mixing{};
  Matrix<W> normalizer_q{}, normalizer_k{};
};

/// Returns the tangent of naive_attention(p).   // [Nq,E]
template <class W, class Z>
Matrix<W> naive_tangent(const NaiveProblem<W, Z>& p, const NaiveDirection<W>& direction);

/// The direction of a form's problem. Feature maps compute in T's accumulator; nothing is checked.
template <class W = double, Scalar T, class Op>
NaiveDirection<W> naive_direction(
    const Inputs<T>& in, const Op& op, const std::type_identity_t<Tangents<T>>& tangents,
    const std::type_identity_t<ParameterTangents<accumulator_t<T>>>& parameters);

/// Returns the tangent that a form must equal, given the same arguments.   // [Nq,E]
template <class W = double, Scalar T, class Blocks, OperatorOn<T> Op>
Matrix<W> naive_tangent(
    const Inputs<T>& in, const Blocks& blocks,
    const std::type_identity_t<MixingView<const accumulator_t<T>>>& mixing, const Op& op,
    const std::type_identity_t<Tangents<T>>& tangents,
    const std::type_identity_t<ParameterTangents<accumulator_t<T>>>& parameters = {},
    Order order = Order::kBidirectional) {
  return naive_tangent(naive_problem<W>(in, blocks, mixing, op, order),
                       naive_direction<W>(in, op, tangents, parameters));
}

// ------------------------------------------------------------------------------------------------

namespace naive_detail {

/// The tangents of factor * phi of all rows of x; masked rows are 0.               // [N,D]
template <class W, class A, class T, class Map>
Matrix<W> feature_tangents(MatrixView<const T> x, MatrixView<const T> dx, const Mask& mask,
                           const Map& map, std::span<const A> dweights, A factor) {
  if (x.absent() || (dx.absent() && dweights.empty())) return {};
  Matrix<A> row(1, x.cols), along(1, x.cols), y(1, map.features(x.cols)), dy(1, y.cols());
  Matrix<W> all = Matrix<W>::Zero(x.rows, y.cols());
  for (Index t = 0; t < x.rows; ++t) {
    if (!mask[t]) continue;
    for (Index j = 0; j < x.cols; ++j) {
      row(0, j) = static_cast<A>(x(t, j));
      along(0, j) = dx.absent() ? A(0) : static_cast<A>(dx(t, j));
    }
    map(static_cast<const A*>(row.data()), y.data(), x.cols);
    detail::write_tangent<A>(map, row.data(), y.data(), along.data(), dy.data(), x.cols,
                             dweights.empty() ? nullptr : dweights.data());
    for (Index j = 0; j < y.cols(); ++j) all(t, j) = W(factor) * W(dy(0, j));
  }
  return all;
}

/// Adds f(p with `factor` replaced by its direction), unless that is empty.
template <class W, class Z, class F>
void add_along(NaiveProblem<W, Z> p, Matrix<W> NaiveProblem<W, Z>::*factor,
               const Matrix<W>& direction, const F& f, Matrix<W>& sum) {
  if (direction.size() == 0) return;
  p.*factor = direction;
  sum += f(p);
}

}  // namespace naive_detail

template <class W, class Z>
Matrix<W> naive_tangent(const NaiveProblem<W, Z>& p, const NaiveDirection<W>& direction) {
  using namespace naive_detail;
  using P = NaiveProblem<W, Z>;
  const Index queries = p.q.rows(), values = p.v.cols();
  const Matrix<W> o = naive_attention(p), den = naive_denominators(p), r = naive_sums(p);
  const auto n_of = [](const P& at) {
    return naive_attention(NaiveProblem<W, NoNormalizer>{at.q,
                                                         at.k,
                                                         at.v,
                                                         at.mixing,
                                                         at.query_block,
                                                         at.key_block,
                                                         at.query_slot,
                                                         {},
                                                         {},
                                                         {},
                                                         at.query_kept,
                                                         at.key_kept,
                                                         at.order});
  };
  const auto r_of = [](const P& at) { return naive_sums(at); };
  Matrix<W> dn = Matrix<W>::Zero(queries, values), dr = Matrix<W>::Zero(queries, 1);
  add_along(p, &P::mixing, direction.mixing, n_of, dn);
  add_along(p, &P::q, direction.q, n_of, dn);
  add_along(p, &P::k, direction.k, n_of, dn);
  add_along(p, &P::v, direction.v, n_of, dn);
  const bool separate = p.normalizer_q.size() > 0;
  add_along(p, &P::mixing, direction.mixing, r_of, dr);
  add_along(p, separate ? &P::normalizer_q : &P::q, separate ? direction.normalizer_q : direction.q,
            r_of, dr);
  add_along(p, separate ? &P::normalizer_k : &P::k, separate ? direction.normalizer_k : direction.k,
            r_of, dr);
  Matrix<W> slope(queries, 1), tangent(queries, values);
  detail::write_slopes(p.normalizer, static_cast<const W*>(r.data()), queries, slope.data());
  for (Index t = 0; t < queries; ++t) {
    for (Index e = 0; e < values; ++e) {
      tangent(t, e) = 0;
      if (!kept(p.query_kept, t) || den(t, 0) == W(0)) continue;
      tangent(t, e) = (dn(t, e) - slope(t, 0) * dr(t, 0) * o(t, e)) / den(t, 0);
    }
  }
  return tangent;
}

template <class W, Scalar T, class Op>
NaiveDirection<W> naive_direction(
    const Inputs<T>& in, const Op& op, const std::type_identity_t<Tangents<T>>& tangents,
    const std::type_identity_t<ParameterTangents<accumulator_t<T>>>& parameters) {
  using namespace naive_detail;
  using A = accumulator_t<T>;
  const A scale = static_cast<A>(op.scale);
  const auto queries = [&](MatrixView<const T> x, MatrixView<const T> dx) {
    return feature_tangents<W>(x, dx, in.query_mask, op.query_map, parameters.query_map, scale);
  };
  const auto keys = [&](MatrixView<const T> x, MatrixView<const T> dx) {
    return feature_tangents<W>(x, dx, in.key_mask, op.key_map, parameters.key_map, A(1));
  };
  NaiveDirection<W> direction{.q = queries(in.q, tangents.q), .k = keys(in.k, tangents.k)};
  direction.normalizer_q = queries(in.normalizer_q, tangents.normalizer_q);
  direction.normalizer_k = keys(in.normalizer_k, tangents.normalizer_k);
  if (!tangents.v.absent()) {
    direction.v = Matrix<W>::Zero(in.v.rows, in.v.cols);
    for (Index t = 0; t < in.v.rows; ++t) {
      for (Index j = 0; j < in.v.cols && in.key_mask[t]; ++j) {
        direction.v(t, j) = W(static_cast<A>(tangents.v(t, j)));
      }
    }
  }
  if (!parameters.mixing.absent()) {
    direction.mixing = parameters.mixing.dense().template cast<W>();
  }
  return direction;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
