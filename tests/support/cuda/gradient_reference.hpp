#pragma once

/// \file
/// The CPU's gradient in double, and bounds of the error that rounding on a device may cause.
///
/// With u, eta, gamma_n and e_d Z+ of reference.hpp, and o^ within its bound of o:
///
///     err(dN) = eps_t |dN_t| + u eta,   1 + eps_t = (1 + u)(1 + gamma_n) / (1 - s e_d Z+ / |den|)
///     err(c)  = |c|_e = sum_e (|dN| |o^ - o| + err(dN) |o|) + gamma_n sum |dN| |o|
///
/// A product of dN, v, phi(q) and phi(k) is rounded at most six times more before it is added. The
/// roundings are those of both features, m, the summary and its mixture or the weight, and the sum.
/// With
///
///     G+ = (|dN| + err(dN)) |V|^T + |c| + |c|_e        P+ = |phi(Q)| |phi(K)|^T
///
/// the error of dphi(q) is bounded by
///
///     |dphi(q)^ - dphi(q)| <= e_6 (|m| G+) |phi(K)| + (|m| (err(dN) |V|^T + |c|_e)) |phi(K)|
///
/// Keys use G+^T, values P+^T and coefficients P+ G+ in the same way. Rotated features are rounded
/// once more each, and eta is added to each rounded factor. phi' has an error of at most 2^-20. The
/// result is rounded once more, and before phi' of ELU + 1 too where tokens are masked.
///
/// A map of one's own rounds dphi, too. With |phi'(x)| = l <= L, which may exceed 1,
///
///     |dx^ - dx| <= l (err(dphi) + u eta) + (u + 2^-20) l (|dphi| + err(dphi)),  then rounded.
///
/// Gradients of decaying terms are sums of dm_ib times lambda^(i-b), or a (i-b) lambda^(i-b-1), and
/// so are their bounds, with magnitudes. The recurrence multiplies by lambda in gamma_n.
///
/// If outputs have a norm, gradients through it are within gamma_n and u of the gradients of o^.
/// First differences bound the errors of those (norm_errors).

#include "support/cuda/reference.hpp"

namespace cuda_test {

/// A call and the gradient of its outputs.
template <class T>
struct GradientCall : Call<T> {
  Tensor<T> dout;
};

/// Gradients of one head, and their error bounds.
struct ExpectedGradient {
  Numbers q, k, v, gate;
  Numbers q_bound, k_bound, v_bound, gate_bound;
  Numbers mixing, mixing_bound;  ///< of this head alone: [Mq,Mk], or [2,R] of decaying terms
  Numbers gain, gain_bound;      ///< [1,E], of this head alone
};

/// \param chain  consecutive float additions and products that lead to a gradient
template <class T>
ExpectedGradient expected_gradient(const GradientCall<T>& call, int b, int h, double chain);

}  // namespace cuda_test
