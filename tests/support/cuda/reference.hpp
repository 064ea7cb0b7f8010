#pragma once

/// \file
/// What a form on a device must give: the CPU's form in double, and how far rounding may lead from
/// it.
///
/// Let u be the unit roundoff of the tensors' type T and eta its least normal number, so that
/// rounding moves x by at most u max(|x|, eta) <= u (|x| + eta). On its way into a sum a term of a
/// numerator is rounded to T at most five times: phi(q), phi(k), m (as a high and a low part:
/// less), the summary and its mixture, or the weight; one of a denominator three times: phi(q),
/// phi(k), the weight. With
///
///     phi+ = |phi| + eta     S+ = sum phi(k)+ |v| + eta     S~+ = sum |m| S+ + eta
///     A+ = sum phi(q)+ S~+ + eta sum |v|      (the last one for weights)       Z+ likewise with v
///     = 1
///
/// and gamma_n for the n float additions and products of the longest chain,
///
///     |n^ - n| <= e_n A+,   e_n = (1 + u)^5 (1 + gamma_n) - 1, ^7 where features turn
///     |d^ - d| <= e_d Z+,   e_d = (1 + u)^3 (1 + gamma_n) - 1
///     |o^ - o| <= s (e_n A+ + e_d |o| Z+) / (|den| - s e_d Z+),  then rounded once more.
///
/// Features that turn are rounded once more, and may be less than what they are sums of: in A+ they
/// are |x cos t| + |y sin t| + eta, x and y those of the pair with eta.
///
/// The norm of a row divides by r = sqrt(mean of o^2 + eps). Let off bound the error of that mean,
/// the roundings of n additions included. A normalised output o / r is then off by
///
///     (e_o + |o| (1 - sqrt(1 - off / r^2))) / (r sqrt(1 - off / r^2)),
///
/// by gamma_4 and 2^-22 for the approximate root, and by 2^-24 (2 |g| + 8) where silu(g) gates it.

#include "mhla/core/matrix.hpp"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/policy/grid_partition.hpp"
#include "support/cuda/problem.hpp"

namespace cuda_test {

using Numbers = mhla::Matrix<double>;

/// What a call has but tensors.
struct CallOptions {
  mhla::GridShape tokens, block;          ///< of the queries
  mhla::GridShape key_tokens, key_block;  ///< of the keys
  mhla::cuda::Operator op;
  bool causal;
};

/// The tensors and the mixing matrix of a call.
template <class T>
struct Call : CallOptions {
  Tensor<T> q, k, v, o;
  Array<float> mixing;  ///< [Mq,Mk]
  /// Angles by which features turn, cosine and sine of each pair, [Nq,D] and [Nk,D]; or of no size,
  /// those of keys alone where they are the queries'.
  Array<float> query_angles{0}, key_angles{0};
  Array<float> gain{0};            ///< [E], or of no size: outputs are not normalised
  Tensor<T> gate{0, 0, 0, 0, {}};  ///< [B,Nq,H,E], or of no size

  bool rotary() const { return query_angles.size() > 0; }
  bool normed() const { return gain.size() > 0; }
  bool gated() const { return gate.tokens() > 0; }
  const Array<float>& angles_of_keys() const {
    return key_angles.size() > 0 ? key_angles : query_angles;
  }
};

/// Outputs of one (batch item, head), and by how much they may be off.
struct Expected {
  Numbers o;      ///< [N,E]
  Numbers bound;  ///< [N,E]
};

/// Outputs of a call, or what they are before norm and gate.
enum class Outputs { kFinal, kBeforeNorm };

/// \param chain  additions and products of floats, one behind another, that lead to an output
template <class T>
Expected expected(const Call<T>& call, int b, int h, double chain, Outputs which = Outputs::kFinal);

}  // namespace cuda_test
