#pragma once

/// \file
/// What a definition needs: multiply-adds, two flops each, and bytes that any implementation moves.
/// Feature maps, denominators and exponentials are not counted.

#include "mhla/policy/mixing_matrix.hpp"
#include "support/shapes.hpp"

namespace mhla::bench {

/// Of one call.
struct Cost {
  double flops = 0;
  double bytes = 0;
  double tokens = 0;
};

inline double number(Index x) { return static_cast<double>(x); }

/// All heads of a shape, with `flops` a head: q, k, v once in, out once out.
template <Scalar T>
Cost whole_call(const Shape& s, double flops) {
  const double tokens = number(s.batch * s.tokens()), heads = number(s.heads);
  return {number(s.batch) * heads * flops,
          tokens * heads * 2 * number(s.width + s.values) * sizeof(T), tokens};
}

/// Summaries and read-outs 2*N*D*E each, and 2*D*E for every coefficient of the mixing matrix.
template <Scalar T, Accumulator A>
Cost bidirectional_cost(const Shape& s, const MixingMatrix<A>& mixing) {
  double coefficients = 0;
  for (Index i = 0; i < mixing.rows(); ++i) {
    coefficients += number(mixing.pattern().last(i) - mixing.pattern().first(i));
  }
  const double de = number(s.width * s.values);
  return whole_call<T>(s, (4 * number(s.tokens()) + 2 * coefficients) * de);
}

/// For N = M*W: nothing reads the summary of the last block, the first reads none, and token w of a
/// block reads w + 1 keys of its own: a sum over a triangle, exactly.
/// \param mixed  multiply-adds of summaries [D,E]
template <Scalar T>
Cost causal_cost(const Shape& s, double mixed) {
  const double n = number(s.tokens()), w = number(s.block_length());
  const double de = number(s.width * s.values), width = number(s.width + s.values);
  return whole_call<T>(s, (4 * (n - w) + 2 * mixed) * de + n * (w + 1) * width);
}
/// With a matrix of which block i reads i coefficients.
template <Scalar T>
Cost causal_cost(const Shape& s) {
  const double m = number(s.tokens()) / number(s.block_length());
  return causal_cost<T>(s, m * (m - 1) / 2);
}

/// One summary of all tokens; causal: every token adds to it and reads it.
template <Scalar T>
Cost linear_cost(const Shape& s) {
  return whole_call<T>(s, 4 * number(s.tokens() * s.width * s.values));
}

/// Every query with every key, scores and values.
template <Scalar T>
Cost softmax_cost(const Shape& s) {
  const double n = number(s.tokens());
  return whole_call<T>(s, 2 * n * n * number(s.width + s.values));
}

/// The gradient of a form of that cost, of q, k, v and the mixing matrix: each product of the
/// forward has two in the backward, of the same number of multiply-adds. For the bidirectional form
/// these are 8*N*D*E, and 4*D*E for every coefficient of the mixing matrix. Products of the forward
/// that the backward needs once more (summaries, mixtures, scores) are not counted: an
/// implementation could have kept them. q, k, v, dout once in, dq, dk, dv once out.
template <Scalar T>
Cost gradient_cost(const Shape& s, const Cost& forward) {
  const double rows = forward.tokens * number(s.heads);
  return {2 * forward.flops, rows * number(4 * s.width + 3 * s.values) * sizeof(T), forward.tokens};
}

}  // namespace mhla::bench
