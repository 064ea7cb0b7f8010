#pragma once

/// \file
/// Gradients of softmax attention (attention/softmax.hpp): O(N^2) time in O(N) memory.
///
///     P = softmax(scale Q K^T) over the keys that a query reads,   O = P V       forward
///     dV = P^T dO
///     dP = dO V^T,   delta_t = sum_j p_tj dp_tj,   ds_tj = p_tj (dp_tj - delta_t)
///     dQ = scale dS K,   dK = scale dS^T Q
///
/// The first pass runs over strips of 64 queries, with all scores of a strip in scratch. It writes
/// dQ, and per query the largest score, the reciprocal of its sum, and delta. The second pass runs
/// over tiles of 64 keys. It recomputes P and dS strip by strip, to the same bits, and writes dV
/// and dK.
/// Cost: Nq*Nk*(8*D + 6*E) flops and 2*Nq*Nk exponentials; half of it when causal, less if a
/// gradient is absent. Memory: Nq*(D+E) + Nk*(2*D+E) numbers, and 128*Nk per worker.
/// Source: the chain rule; the recomputation of P: Dao et al., arXiv:2205.14135.

#include "mhla/attention/operator.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/driver.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/gradient/softmax_head.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Adds the gradients of softmax_bidirectional, of one head or of all heads of a batch. Each
/// element is summed in the accumulator type and rounded once, when it is added. A masked token and
/// its row of dout are not read, and its rows of the gradients stay unchanged. This also holds for
/// a query without keys. A query whose row of dout is 0 adds exactly 0. A query whose scores
/// are all -infinity adds NaN. Both normalizer_q and normalizer_k are ignored.
/// \param gradients  q, k and v may be absent; overlap nothing that is read
/// \param options    those of the forward call
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In>
void softmax_bidirectional_gradient(const In& in,
                                    const std::type_identity_t<detail::dout_of<In>>& dout,
                                    const detail::gradients_of<In>& gradients,
                                    const SoftmaxOptions& options = {}, const Call& call = {});

/// Adds the gradients of softmax_causal. Row t of dq depends on no key or value after t. Rows t of
/// dk and dv depend on no query or row of dout before t.
template <AttentionInputs In>
void softmax_causal_gradient(const In& in, const std::type_identity_t<detail::dout_of<In>>& dout,
                             const detail::gradients_of<In>& gradients,
                             const SoftmaxOptions& options = {}, const Call& call = {});

/// Bytes of workspace for either call and any gradients; reads no data.
template <AttentionInputs In>
std::size_t softmax_gradient_workspace_bytes(const In& in, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <class A, Scalar T>
std::size_t gradient_bytes(const SoftmaxForm<A>& form, const Inputs<T>& in, Index workers) {
  return counted_bytes(
      [&](Arena& arena) { return SoftmaxGradientHead<T>(form.name, arena, in, A(1), workers); });
}

template <class A, Scalar T>
void add_gradient(const SoftmaxForm<A>& form, Arena& arena, Arena* /*kept*/, const Inputs<T>& in,
                  MatrixView<const T> dout, const Gradients<T>& gradients,
                  const ParameterGradients<A>& /*sums*/, const ExecutorRef& executor) {
  SoftmaxGradientHead<T>(form.name, arena, in, form.scale(in), executor.workers())
      .run(form.causal, dout, gradients, executor);
}

}  // namespace detail

template <AttentionInputs In>
std::size_t softmax_gradient_workspace_bytes(const In& in, const ExecutorRef& executor) {
  constexpr const char* kName = "softmax_gradient_workspace_bytes";
  return detail::form_gradient_bytes(detail::softmax_form(in, kName, false), in, {}, executor);
}

template <AttentionInputs In>
void softmax_bidirectional_gradient(const In& in,
                                    const std::type_identity_t<detail::dout_of<In>>& dout,
                                    const detail::gradients_of<In>& gradients,
                                    const SoftmaxOptions& options, const Call& call) {
  detail::run_gradient(detail::softmax_form(in, "softmax_bidirectional_gradient", false, options),
                       in, dout, gradients, {}, {}, call);
}

template <AttentionInputs In>
void softmax_causal_gradient(const In& in, const std::type_identity_t<detail::dout_of<In>>& dout,
                             const detail::gradients_of<In>& gradients,
                             const SoftmaxOptions& options, const Call& call) {
  detail::run_gradient(detail::softmax_form(in, "softmax_causal_gradient", true, options), in, dout,
                       gradients, {}, {}, call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
