#pragma once

/// \file
/// Calls of the forms with Eigen matrices q [Nq,D], k [Nk,D] and v [Nk,E] in the place of
/// inputs(q, k, v). Calls without an output return a Matrix [Nq,E]. Headers of forms include this.

#include <optional>
#include <type_traits>

#include "mhla/attention/batch.hpp"
#include "mhla/attention/call_diagnostics.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/refused.hpp"
#include "mhla/core/tensor.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The choices of softmax attention.
struct SoftmaxOptions {
  std::optional<double> scale{};  ///< of the scores; 1/sqrt(D) if not set
};

namespace detail {
/// Where an output of elements of Q goes.
template <class Q>
using matrix_out = std::type_identity_t<MatrixView<typename Q::Scalar>>;
}  // namespace detail

template <EigenDense Q, EigenDense K, EigenDense V, AttentionBlocks Blocks,
          detail::LikeMixing<accumulator_t<typename Q::Scalar>> M,
          OperatorOn<typename Q::Scalar> Op = Operator<>>
Matrix<typename Q::Scalar> bidirectional(const Q& q, const K& k, const V& v, const Blocks& blocks,
                                         const M& mixing, const Op& op = {},
                                         const Call& call = {}) {
  return bidirectional(inputs(q, k, v), blocks, mixing, op, call);
}
template <EigenDense Q, EigenDense K, EigenDense V, AttentionBlocks Blocks,
          detail::LikeMixing<accumulator_t<typename Q::Scalar>> M>
Matrix<typename Q::Scalar> bidirectional(const Q& q, const K& k, const V& v, const Blocks& blocks,
                                         const M& mixing, const Call& call) {
  return bidirectional(inputs(q, k, v), blocks, mixing, Operator<>{}, call);
}
template <EigenDense Q, EigenDense K, EigenDense V, AttentionBlocks Blocks,
          detail::LikeMixing<accumulator_t<typename Q::Scalar>> M,
          OperatorOn<typename Q::Scalar> Op>
void bidirectional(const Q& q, const K& k, const V& v, const Blocks& blocks, const M& mixing,
                   const Op& op, const detail::matrix_out<Q>& out, const Call& call = {}) {
  bidirectional(inputs(q, k, v), blocks, mixing, op, out, call);
}
template <EigenDense Q, EigenDense K, EigenDense V, AttentionBlocks Blocks,
          detail::LikeMixing<accumulator_t<typename Q::Scalar>> M>
void bidirectional(const Q& q, const K& k, const V& v, const Blocks& blocks, const M& mixing,
                   const detail::matrix_out<Q>& out, const Call& call = {}) {
  bidirectional(inputs(q, k, v), blocks, mixing, Operator<>{}, out, call);
}

/// The mixing matrix may be one of decaying terms (causal_decay.hpp).
template <EigenDense Q, EigenDense K, EigenDense V, BlocksOf Blocks,
          detail::LikeMixing<accumulator_t<typename Q::Scalar>> M,
          CausalOperatorOn<typename Q::Scalar> Op = Operator<>>
Matrix<typename Q::Scalar> causal(const Q& q, const K& k, const V& v, const Blocks& blocks,
                                  const M& mixing, const Op& op = {}, const Call& call = {}) {
  return causal(inputs(q, k, v), blocks, mixing, op, call);
}
template <EigenDense Q, EigenDense K, EigenDense V, BlocksOf Blocks,
          detail::LikeMixing<accumulator_t<typename Q::Scalar>> M>
Matrix<typename Q::Scalar> causal(const Q& q, const K& k, const V& v, const Blocks& blocks,
                                  const M& mixing, const Call& call) {
  return causal(inputs(q, k, v), blocks, mixing, Operator<>{}, call);
}
template <EigenDense Q, EigenDense K, EigenDense V, BlocksOf Blocks,
          detail::LikeMixing<accumulator_t<typename Q::Scalar>> M,
          CausalOperatorOn<typename Q::Scalar> Op>
void causal(const Q& q, const K& k, const V& v, const Blocks& blocks, const M& mixing, const Op& op,
            const detail::matrix_out<Q>& out, const Call& call = {}) {
  causal(inputs(q, k, v), blocks, mixing, op, out, call);
}
template <EigenDense Q, EigenDense K, EigenDense V, BlocksOf Blocks,
          detail::LikeMixing<accumulator_t<typename Q::Scalar>> M>
void causal(const Q& q, const K& k, const V& v, const Blocks& blocks, const M& mixing,
            const detail::matrix_out<Q>& out, const Call& call = {}) {
  causal(inputs(q, k, v), blocks, mixing, Operator<>{}, out, call);
}

template <EigenDense Q, EigenDense K, EigenDense V, OperatorOn<typename Q::Scalar> Op = Operator<>>
Matrix<typename Q::Scalar> linear_bidirectional(const Q& q, const K& k, const V& v,
                                                const Op& op = {}, const Call& call = {}) {
  return linear_bidirectional(inputs(q, k, v), op, call);
}
template <EigenDense Q, EigenDense K, EigenDense V>
Matrix<typename Q::Scalar> linear_bidirectional(const Q& q, const K& k, const V& v,
                                                const Call& call) {
  return linear_bidirectional(inputs(q, k, v), Operator<>{}, call);
}
template <EigenDense Q, EigenDense K, EigenDense V, OperatorOn<typename Q::Scalar> Op>
void linear_bidirectional(const Q& q, const K& k, const V& v, const Op& op,
                          const detail::matrix_out<Q>& out, const Call& call = {}) {
  linear_bidirectional(inputs(q, k, v), op, out, call);
}
template <EigenDense Q, EigenDense K, EigenDense V>
void linear_bidirectional(const Q& q, const K& k, const V& v, const detail::matrix_out<Q>& out,
                          const Call& call = {}) {
  linear_bidirectional(inputs(q, k, v), Operator<>{}, out, call);
}

template <EigenDense Q, EigenDense K, EigenDense V,
          CausalOperatorOn<typename Q::Scalar> Op = Operator<>>
Matrix<typename Q::Scalar> linear_causal(const Q& q, const K& k, const V& v, const Op& op = {},
                                         const Call& call = {}) {
  return linear_causal(inputs(q, k, v), op, call);
}
template <EigenDense Q, EigenDense K, EigenDense V>
Matrix<typename Q::Scalar> linear_causal(const Q& q, const K& k, const V& v, const Call& call) {
  return linear_causal(inputs(q, k, v), Operator<>{}, call);
}
template <EigenDense Q, EigenDense K, EigenDense V, CausalOperatorOn<typename Q::Scalar> Op>
void linear_causal(const Q& q, const K& k, const V& v, const Op& op,
                   const detail::matrix_out<Q>& out, const Call& call = {}) {
  linear_causal(inputs(q, k, v), op, out, call);
}
template <EigenDense Q, EigenDense K, EigenDense V>
void linear_causal(const Q& q, const K& k, const V& v, const detail::matrix_out<Q>& out,
                   const Call& call = {}) {
  linear_causal(inputs(q, k, v), Operator<>{}, out, call);
}

template <EigenDense Q, EigenDense K, EigenDense V>
Matrix<typename Q::Scalar> softmax_bidirectional(const Q& q, const K& k, const V& v,
                                                 const SoftmaxOptions& options = {},
                                                 const Call& call = {}) {
  return softmax_bidirectional(inputs(q, k, v), options, call);
}
template <EigenDense Q, EigenDense K, EigenDense V>
Matrix<typename Q::Scalar> softmax_bidirectional(const Q& q, const K& k, const V& v,
                                                 const Call& call) {
  return softmax_bidirectional(inputs(q, k, v), SoftmaxOptions{}, call);
}
template <EigenDense Q, EigenDense K, EigenDense V>
void softmax_bidirectional(const Q& q, const K& k, const V& v, const detail::matrix_out<Q>& out,
                           const SoftmaxOptions& options = {}, const Call& call = {}) {
  softmax_bidirectional(inputs(q, k, v), out, options, call);
}

template <EigenDense Q, EigenDense K, EigenDense V>
Matrix<typename Q::Scalar> softmax_causal(const Q& q, const K& k, const V& v,
                                          const SoftmaxOptions& options = {},
                                          const Call& call = {}) {
  return softmax_causal(inputs(q, k, v), options, call);
}
template <EigenDense Q, EigenDense K, EigenDense V>
Matrix<typename Q::Scalar> softmax_causal(const Q& q, const K& k, const V& v, const Call& call) {
  return softmax_causal(inputs(q, k, v), SoftmaxOptions{}, call);
}
template <EigenDense Q, EigenDense K, EigenDense V>
void softmax_causal(const Q& q, const K& k, const V& v, const detail::matrix_out<Q>& out,
                    const SoftmaxOptions& options = {}, const Call& call = {}) {
  softmax_causal(inputs(q, k, v), out, options, call);
}

/// Refuse, in a sentence, a shape in braces: matrices have theirs.
template <EigenDense Q, EigenDense K, EigenDense V, class... X>
detail::Refused<detail::Mistake::kShape, Q, K, V, X...> bidirectional(const Q&, const K&, const V&,
                                                                      const Shape&, const X&...);
template <EigenDense Q, EigenDense K, EigenDense V, class... X>
detail::Refused<detail::Mistake::kShape, Q, K, V, X...> causal(const Q&, const K&, const V&,
                                                               const Shape&, const X&...);
template <EigenDense Q, EigenDense K, EigenDense V, class... X>
detail::Refused<detail::Mistake::kShape, Q, K, V, X...> softmax_bidirectional(const Q&, const K&,
                                                                              const V&,
                                                                              const Shape&,
                                                                              const X&...);
template <EigenDense Q, EigenDense K, EigenDense V, class... X>
detail::Refused<detail::Mistake::kShape, Q, K, V, X...> softmax_causal(const Q&, const K&, const V&,
                                                                       const Shape&, const X&...);

}  // namespace MHLA_TARGET
}  // namespace mhla
