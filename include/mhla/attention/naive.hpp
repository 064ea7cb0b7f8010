#pragma once

/// \file
/// The definition, in plain loops: what all other forms must equal. It shares no code with them.
///
///     A_tj = m_{block(t), block(j)} q_t . k_j            [Nq,Nk]; causal: 0 for j > t
///     o_t  = sum_j A_tj v_j / den_t                      [E]
///
///     den_t = 1                                          kNone
///     den_t = sum_j A_tj + eps                           kKeySum, the paper
///     den_t = sum_j m_{block(t), block(j)} q_u . k_j + eps,  u the query in block(j) whose slot is
///             that of t                                  kCrossQuery, released vision models
///
/// q and k are features: the feature map and the scale have been applied. Masked keys and queries
/// are left out of every sum; a masked query's output is 0.
/// Cost: Nq*Nk*(D+E) multiply-adds, Nq*Nk numbers of memory.
/// Source: arXiv:2601.07832, section 4.1, eqs. (3)-(5), and section 4.2 for the causal form.

#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"

namespace mhla::inline MHLA_TARGET {

enum class NaiveNormalizer { kNone, kKeySum, kCrossQuery };

/// One head's problem in a type W as wide as you like (long double works).
template <class W>
struct NaiveProblem {
  Matrix<W> q;                     ///< [Nq,D] scale * phi(q)
  Matrix<W> k;                     ///< [Nk,D] phi(k)
  Matrix<W> v;                     ///< [Nk,E]
  Matrix<W> mixing;                ///< [Mq,Mk]
  std::vector<Index> query_block;  ///< [Nq] block of each query
  std::vector<Index> key_block;    ///< [Nk] block of each key
  std::vector<Index> query_slot;   ///< [Nq] place of each query in its block (kCrossQuery)
  NaiveNormalizer normalizer = NaiveNormalizer::kKeySum;
  W eps = 0;
  Matrix<W> normalizer_q;        ///< [Nq,Dz], empty: q
  Matrix<W> normalizer_k;        ///< [Nk,Dz], empty: k
  std::vector<bool> query_kept;  ///< [Nq], empty: all
  std::vector<bool> key_kept;    ///< [Nk], empty: all
  bool causal = false;
};

/// Returns A.   // [Nq,Nk]
template <class W>
Matrix<W> naive_weights(const NaiveProblem<W>& p);

/// Returns the denominators.   // [Nq,1]
template <class W>
Matrix<W> naive_denominators(const NaiveProblem<W>& p);

/// Returns the output.   // [Nq,E]
template <class W>
Matrix<W> naive_attention(const NaiveProblem<W>& p);

// ------------------------------------------------------------------------------------------------

namespace naive_detail {

template <class W>
W inner(const Matrix<W>& a, Index row_a, const Matrix<W>& b, Index row_b) {
  W sum = 0;
  for (Index d = 0; d < a.cols(); ++d) sum += a(row_a, d) * b(row_b, d);
  return sum;
}

inline bool kept(const std::vector<bool>& mask, Index token) {
  return mask.empty() || mask[static_cast<std::size_t>(token)];
}

inline Index at(const std::vector<Index>& values, Index token) {
  return values[static_cast<std::size_t>(token)];
}

/// m q . k over the keys a query may see, from the given features.
template <class W>
Matrix<W> weights(const NaiveProblem<W>& p, const Matrix<W>& q, const Matrix<W>& k) {
  Matrix<W> a(q.rows(), k.rows());
  for (Index t = 0; t < q.rows(); ++t) {
    for (Index j = 0; j < k.rows(); ++j) {
      a(t, j) = 0;
      if (!kept(p.query_kept, t) || !kept(p.key_kept, j) || (p.causal && j > t)) continue;
      a(t, j) = p.mixing(at(p.query_block, t), at(p.key_block, j)) * inner(q, t, k, j);
    }
  }
  return a;
}

}  // namespace naive_detail

template <class W>
Matrix<W> naive_weights(const NaiveProblem<W>& p) {
  return naive_detail::weights(p, p.q, p.k);
}

template <class W>
Matrix<W> naive_denominators(const NaiveProblem<W>& p) {
  using namespace naive_detail;
  const Matrix<W>& q = p.normalizer_q.size() == 0 ? p.q : p.normalizer_q;
  const Matrix<W>& k = p.normalizer_k.size() == 0 ? p.k : p.normalizer_k;
  Matrix<W> den(q.rows(), 1);
  if (p.normalizer == NaiveNormalizer::kNone) {
    for (Index t = 0; t < q.rows(); ++t) den(t, 0) = 1;
  } else if (p.normalizer == NaiveNormalizer::kKeySum) {
    const Matrix<W> a = weights(p, q, k);
    for (Index t = 0; t < q.rows(); ++t) {
      den(t, 0) = p.eps;
      for (Index j = 0; j < k.rows(); ++j) den(t, 0) += a(t, j);
    }
  } else {
    for (Index t = 0; t < q.rows(); ++t) {
      den(t, 0) = p.eps;
      for (Index u = 0; u < q.rows(); ++u) {
        if (!kept(p.query_kept, u) || at(p.query_slot, u) != at(p.query_slot, t)) continue;
        for (Index j = 0; j < k.rows(); ++j) {
          if (!kept(p.key_kept, j) || at(p.key_block, j) != at(p.query_block, u)) continue;
          den(t, 0) += p.mixing(at(p.query_block, t), at(p.key_block, j)) * inner(q, u, k, j);
        }
      }
    }
  }
  return den;
}

template <class W>
Matrix<W> naive_attention(const NaiveProblem<W>& p) {
  const Matrix<W> a = naive_weights(p);
  const Matrix<W> den = naive_denominators(p);
  Matrix<W> o(p.q.rows(), p.v.cols());
  for (Index t = 0; t < p.q.rows(); ++t) {
    for (Index e = 0; e < p.v.cols(); ++e) {
      o(t, e) = 0;
      if (!naive_detail::kept(p.query_kept, t)) continue;
      for (Index j = 0; j < p.k.rows(); ++j) {
        if (!naive_detail::kept(p.key_kept, j) || (p.causal && j > t)) continue;
        o(t, e) += a(t, j) * p.v(j, e);
      }
      o(t, e) /= den(t, 0);
    }
  }
  return o;
}

}  // namespace mhla::inline MHLA_TARGET
