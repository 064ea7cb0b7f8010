#pragma once

/// \file
/// Costs of the definitions: multiply-adds, two flops each, and bytes that any implementation
/// moves. Feature maps, denominators and exponentials are not counted.

#include "mhla/policy/mixing_matrix.hpp"
#include "support/shapes.hpp"

namespace mhla::bench {

/// Cost of one call.
struct Cost {
  double flops = 0;
  double bytes = 0;
  double tokens = 0;
};

inline double number(Index x) { return static_cast<double>(x); }

/// Cost of all heads of a shape, with `flops` per head: q, k, v are read once, out is written once.
template <Scalar T>
Cost whole_call(const Shape& s, double flops) {
  const double tokens = number(s.batch * s.tokens()), heads = number(s.heads);
  return {number(s.batch) * heads * flops,
          tokens * heads * 2 * number(s.width + s.values) * sizeof(T), tokens};
}

/// Cost of the bidirectional form: summaries and read-outs take 2*N*D*E flops each, every
/// coefficient of the mixing matrix 2*D*E.
template <Scalar T, Accumulator A>
Cost bidirectional_cost(const Shape& s, const MixingMatrix<A>& mixing) {
  double coefficients = 0;
  for (Index i = 0; i < mixing.rows(); ++i) {
    coefficients += number(mixing.pattern().last(i) - mixing.pattern().first(i));
  }
  const double de = number(s.width * s.values);
  return whole_call<T>(s, (4 * number(s.tokens()) + 2 * coefficients) * de);
}

/// Cost of the causal form for N = M*W. No block reads the summary of the last block, and the first
/// block reads none. Token w of a block reads w + 1 keys of its block.
/// \param mixed  multiply-adds of summaries [D,E]
template <Scalar T>
Cost causal_cost(const Shape& s, double mixed) {
  const double n = number(s.tokens()), w = number(s.block_length());
  const double de = number(s.width * s.values), width = number(s.width + s.values);
  return whole_call<T>(s, (4 * (n - w) + 2 * mixed) * de + n * (w + 1) * width);
}
/// Cost of the causal form if block i mixes all i earlier blocks.
template <Scalar T>
Cost causal_cost(const Shape& s) {
  const double m = number(s.tokens()) / number(s.block_length());
  return causal_cost<T>(s, m * (m - 1) / 2);
}

/// Cost of linear attention: every token adds to one summary and reads it.
template <Scalar T>
Cost linear_cost(const Shape& s) {
  return whole_call<T>(s, 4 * number(s.tokens() * s.width * s.values));
}

/// Cost of softmax attention: scores and weighted values of every query and key.
template <Scalar T>
Cost softmax_cost(const Shape& s) {
  const double n = number(s.tokens());
  return whole_call<T>(s, 2 * n * n * number(s.width + s.values));
}

/// Cost of the gradient of q, k, v and the mixing matrix, from the cost of the forward. Each
/// product of the forward has two of the same number of multiply-adds in the backward. The
/// bidirectional form has 8*N*D*E flops, and 4*D*E for every coefficient of the mixing matrix.
/// Products that the backward repeats (summaries, mixtures, scores) are not counted, because an
/// implementation can keep them. q, k, v, dout are read once; dq, dk, dv are written once.
template <Scalar T>
Cost gradient_cost(const Shape& s, const Cost& forward) {
  const double rows = forward.tokens * number(s.heads);
  return {2 * forward.flops, rows * number(4 * s.width + 3 * s.values) * sizeof(T), forward.tokens};
}

}  // namespace mhla::bench
