#pragma once

/// \file
/// The definition, in plain loops; every form must equal it. Shares only the policies with them.
///
///     A_tj = m_{block(t), block(j)} q_t . k_j            [Nq,Nk]; causal: 0 for j > t
///     o_t  = sum_j A_tj v_j / den(r_t)                   [E]
///
///     den = 1                                                            WeightSums::kNone
///     r_t = sum_j A_tj                                                   WeightSums::kToken
///     r_t = sum_j m_{block(t), block(j)} q_u . k_j                       WeightSums::kCrossQuery
///           u: the query in block(j) with the slot of t
///
/// q = scale phi(q) and k = phi(k) are features. Masked keys and queries are left out of every sum;
/// a masked query's output is 0. Cost: Nq*Nk*(D+E) multiply-adds, Nq*Nk numbers of memory. Source:
/// arXiv:2601.07832, section 4.1, eqs. (3)-(5), and section 4.2 for the causal form.

#include <type_traits>
#include <vector>

#include "mhla/attention/batch.hpp"
#include "mhla/attention/heads.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/policy/normalizer.hpp"
#include "mhla/policy/partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Which keys a query reads.
enum class Order { kBidirectional, kCausal };

/// One head's problem after the feature maps, in any real type W (long double works).
template <class W, Normalizer Z = KeySum>
struct NaiveProblem {
  Matrix<W> q{};                     ///< [Nq,D] scale * phi(q)
  Matrix<W> k{};                     ///< [Nk,D] phi(k)
  Matrix<W> v{};                     ///< [Nk,E]
  Matrix<W> mixing{};                ///< [Mq,Mk]
  std::vector<Index> query_block{};  ///< [Nq] block of each query
  std::vector<Index> key_block{};    ///< [Nk] block of each key
  std::vector<Index> query_slot{};   ///< [Nq] place of each query in its block
  Z normalizer{};
  Matrix<W> normalizer_q{};        ///< [Nq,Dz], empty: q
  Matrix<W> normalizer_k{};        ///< [Nk,Dz], empty: k
  std::vector<bool> query_kept{};  ///< [Nq], empty: all
  std::vector<bool> key_kept{};    ///< [Nk], empty: all
  Order order = Order::kBidirectional;
};

/// Returns A.   // [Nq,Nk]
template <class W, class Z>
Matrix<W> naive_weights(const NaiveProblem<W, Z>& p);

/// Returns the sums r_t.   // [Nq,1]
template <class W, class Z>
Matrix<W> naive_sums(const NaiveProblem<W, Z>& p);

/// Returns den(r_t).   // [Nq,1]
template <class W, class Z>
Matrix<W> naive_denominators(const NaiveProblem<W, Z>& p);

/// Returns the output.   // [Nq,E]
template <class W, class Z>
Matrix<W> naive_attention(const NaiveProblem<W, Z>& p);

/// A form's problem with these arguments. Feature maps compute in T's accumulator, the rest in W.
/// \throws shape_error if a normaliser has queries of its own without a feature; nothing else is
///         checked.
template <class W = double, Scalar T, class Blocks, OperatorOn<T> Op>
NaiveProblem<W, detail::normalizer_t<Op>> naive_problem(
    const Inputs<T>& in, const Blocks& blocks,
    const std::type_identity_t<MixingView<const accumulator_t<T>>>& mixing, const Op& op,
    Order order = Order::kBidirectional);

/// Returns the output that a form must equal, given the same arguments.   // [Nq,E]
template <class W = double, Scalar T, class Blocks, OperatorOn<T> Op = Operator<>>
Matrix<W> naive_attention(const Inputs<T>& in, const Blocks& blocks,
                          const std::type_identity_t<MixingView<const accumulator_t<T>>>& mixing,
                          const Op& op = {}, Order order = Order::kBidirectional) {
  return naive_attention(naive_problem<W>(in, blocks, mixing, op, order));
}
/// The same of a batch.   // [B,Nq,H,E]
template <class W = double, Scalar T, class Blocks, OperatorOn<T> Op = Operator<>>
Tensor<W> naive_attention(const BatchInputs<T>& in, const Blocks& blocks,
                          const std::type_identity_t<MixingView<const accumulator_t<T>>>& mixing,
                          const Op& op = {}, Order order = Order::kBidirectional) {
  detail::expect_mixing_of_heads("naive_attention", mixing, detail::sequences(in),
                                 detail::heads(in));
  Tensor<W> out({in.q.batch(), in.q.tokens(), in.q.heads(), in.v.width()});
  for (Index s = 0; s < detail::sequences(in); ++s) {
    for (Index h = 0; h < detail::heads(in); ++h) {
      const Matrix<W> head = naive_attention<W>(detail::head_inputs(in, s, h), blocks,
                                                mixing.of_sequence(s).of_head(h), op, order);
      const MatrixView<W> to = detail::head_output(in, out.view(), s, h);
      for (Index t = 0; t < head.rows(); ++t) {
        for (Index e = 0; e < head.cols(); ++e) to(t, e) = head(t, e);
      }
    }
  }
  return out;
}

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

/// m q . k from the given features; 0 for keys that a query does not see.
template <class W, class Z>
Matrix<W> weights(const NaiveProblem<W, Z>& p, const Matrix<W>& q, const Matrix<W>& k) {
  Matrix<W> a(q.rows(), k.rows());
  for (Index t = 0; t < q.rows(); ++t) {
    for (Index j = 0; j < k.rows(); ++j) {
      a(t, j) = 0;
      if (!kept(p.query_kept, t) || !kept(p.key_kept, j) || (p.order == Order::kCausal && j > t))
        continue;
      a(t, j) = p.mixing(at(p.query_block, t), at(p.key_block, j)) * inner(q, t, k, j);
    }
  }
  return a;
}

/// factor * phi of all rows of x; masked rows are 0.                              // [N,D]
template <class W, class A, class T, class Map>
Matrix<W> features(MatrixView<const T> x, const Mask& mask, const Map& map, A factor) {
  Matrix<A> row(1, x.cols), y(1, map.features(x.cols));
  Matrix<W> all = Matrix<W>::Zero(x.rows, y.cols());
  for (Index t = 0; t < x.rows; ++t) {
    if (!mask[t]) continue;
    for (Index j = 0; j < x.cols; ++j) row(0, j) = static_cast<A>(x(t, j));
    map(static_cast<const A*>(row.data()), y.data(), x.cols);
    for (Index j = 0; j < y.cols(); ++j) all(t, j) = W(factor) * W(y(0, j));
  }
  return all;
}

/// The block and the slot of every token.
template <class P>
void locate(const P& blocks, std::vector<Index>& block, std::vector<Index>& slot) {
  block.resize(static_cast<std::size_t>(blocks.tokens()));
  slot.resize(block.size());
  for (Index b = 0; b < blocks.blocks(); ++b) {
    Index place = 0;
    for (Index r = 0; r < blocks.runs(b); ++r) {
      const Run run = blocks.run(b, r);
      for (Index t = run.begin; t < run.begin + run.length; ++t) {
        block[static_cast<std::size_t>(t)] = b;
        slot[static_cast<std::size_t>(t)] = place++;
      }
    }
  }
}

inline std::vector<bool> kept_tokens(const Mask& mask, Index tokens) {
  std::vector<bool> all(static_cast<std::size_t>(tokens));
  for (Index t = 0; t < tokens; ++t) all[static_cast<std::size_t>(t)] = mask[t];
  return all;
}

}  // namespace naive_detail

template <class W, Scalar T, class Blocks, OperatorOn<T> Op>
NaiveProblem<W, detail::normalizer_t<Op>> naive_problem(
    const Inputs<T>& in, const Blocks& blocks,
    const std::type_identity_t<MixingView<const accumulator_t<T>>>& mixing, const Op& op,
    Order order) {
  using namespace naive_detail;
  using A = accumulator_t<T>;
  detail::expect_normalizer_features("naive_problem", in, op);
  const A scale = static_cast<A>(op.scale);
  NaiveProblem<W, detail::normalizer_t<Op>> p{.normalizer = op.normalizer};
  p.q = features<W>(in.q, in.query_mask, op.query_map, scale);
  p.k = features<W>(in.k, in.key_mask, op.key_map, A(1));
  if (!in.normalizer_q.absent()) {
    p.normalizer_q = features<W>(in.normalizer_q, in.query_mask, op.query_map, scale);
    p.normalizer_k = features<W>(in.normalizer_k, in.key_mask, op.key_map, A(1));
  }
  p.v = Matrix<W>::Zero(in.v.rows, in.v.cols);
  for (Index t = 0; t < in.v.rows; ++t) {
    for (Index j = 0; j < in.v.cols && in.key_mask[t]; ++j) {
      p.v(t, j) = W(static_cast<A>(in.v(t, j)));
    }
  }
  p.mixing = mixing.dense().template cast<W>();
  std::vector<Index> key_slot{};
  const auto& queries = detail::blocks_of(detail::query_blocks(blocks), in.q.rows);
  const auto& keys = detail::blocks_of(detail::key_blocks(blocks), in.k.rows);
  locate(queries, p.query_block, p.query_slot);
  locate(keys, p.key_block, key_slot);
  p.query_kept = kept_tokens(in.query_mask, in.q.rows);
  p.key_kept = kept_tokens(in.key_mask, in.k.rows);
  p.order = order;
  return p;
}

template <class W, class Z>
Matrix<W> naive_weights(const NaiveProblem<W, Z>& p) {
  return naive_detail::weights(p, p.q, p.k);
}

template <class W, class Z>
Matrix<W> naive_sums(const NaiveProblem<W, Z>& p) {
  using namespace naive_detail;
  const Matrix<W>& q = p.normalizer_q.size() == 0 ? p.q : p.normalizer_q;
  const Matrix<W>& k = p.normalizer_k.size() == 0 ? p.k : p.normalizer_k;
  Matrix<W> sums(q.rows(), 1);
  for (Index t = 0; t < q.rows(); ++t) sums(t, 0) = 0;
  if (p.normalizer.sums() == WeightSums::kToken) {
    const Matrix<W> a = weights(p, q, k);
    for (Index t = 0; t < q.rows(); ++t) {
      for (Index j = 0; j < k.rows(); ++j) sums(t, 0) += a(t, j);
    }
  } else if (p.normalizer.sums() == WeightSums::kCrossQuery) {
    for (Index t = 0; t < q.rows(); ++t) {
      for (Index u = 0; u < q.rows(); ++u) {
        if (!kept(p.query_kept, u) || at(p.query_slot, u) != at(p.query_slot, t)) continue;
        for (Index j = 0; j < k.rows(); ++j) {
          if (!kept(p.key_kept, j) || at(p.key_block, j) != at(p.query_block, u)) continue;
          sums(t, 0) += p.mixing(at(p.query_block, t), at(p.key_block, j)) * inner(q, u, k, j);
        }
      }
    }
  }
  return sums;
}

template <class W, class Z>
Matrix<W> naive_denominators(const NaiveProblem<W, Z>& p) {
  Matrix<W> den = naive_sums(p);
  detail::write_denominators(p.normalizer, static_cast<const W*>(den.data()), den.rows(),
                             den.data());
  return den;
}

template <class W, class Z>
Matrix<W> naive_attention(const NaiveProblem<W, Z>& p) {
  const Matrix<W> a = naive_weights(p);
  const Matrix<W> den = naive_denominators(p);
  Matrix<W> o(p.q.rows(), p.v.cols());
  for (Index t = 0; t < p.q.rows(); ++t) {
    for (Index e = 0; e < p.v.cols(); ++e) {
      o(t, e) = 0;
      if (!naive_detail::kept(p.query_kept, t)) continue;
      for (Index j = 0; j < p.k.rows(); ++j) {
        if (!naive_detail::kept(p.key_kept, j) || (p.order == Order::kCausal && j > t)) continue;
        o(t, e) += a(t, j) * p.v(j, e);
      }
      o(t, e) = detail::quotient(o(t, e), den(t, 0));
    }
  }
  return o;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
