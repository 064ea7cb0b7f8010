#pragma once

/// \file
/// Tangents of softmax attention (attention/softmax.hpp), tile by tile in O(N) memory. With weights
/// w_tj = exp(s_tj - max_j s_tj), s = scale Q K^T, and primes for tangents:
///
///     s'_tj = scale (q'_t . k_j + q_t . k'_j)
///     o'_t  = (sum_j w_tj (s'_tj v_j + v'_j) - o_t sum_j w_tj s'_tj) / sum_j w_tj
///
/// The output has the bits of the forward form. A query without keys has the tangent 0.
/// Cost: 6*Nq*Nk*(D+E) flops and Nq*Nk exponentials with all directions, half of it when causal;
/// memory 2*Nk*(D+E) numbers. Source: the product and the quotient rule.

#include "mhla/attention/operator.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/tangent/driver.hpp"
#include "mhla/tangent/softmax_head.hpp"
#include "mhla/tangent/tangents.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes the output and its tangent of one head, or of all heads of a batch. Directions
/// normalizer_q and normalizer_k are ignored.
/// \param out      {.value, .tangent}, each shaped as the output; they overlap nothing
/// \param options  those of the forward call
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In>
void softmax_bidirectional_tangent(const In& in, const detail::tangents_of<In>& tangents,
                                   const detail::tangent_output_of<In>& out,
                                   const SoftmaxOptions& options = {}, const Call& call = {});
/// The same of softmax_causal. Row t of the tangent depends on no later token or direction.
template <AttentionInputs In>
void softmax_causal_tangent(const In& in, const detail::tangents_of<In>& tangents,
                            const detail::tangent_output_of<In>& out,
                            const SoftmaxOptions& options = {}, const Call& call = {});

/// Bytes of workspace for either call and any tangents; reads no data.
template <AttentionInputs In>
std::size_t softmax_tangent_workspace_bytes(const In& in, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <class A, Scalar T>
std::size_t tangent_bytes(const SoftmaxForm<A>& form, const Inputs<T>& in, Index workers) {
  return counted_bytes(
      [&](Arena& arena) { return SoftmaxTangentHead<T>(form.name, arena, in, A(1), workers); });
}

template <class A, Scalar T>
void write_tangent(const SoftmaxForm<A>& form, Arena& arena, const Inputs<T>& in,
                   const Tangents<T>& tangents, const ParameterTangents<A>& /*parameters*/,
                   const WithTangent<MatrixView<T>>& out, const ExecutorRef& executor) {
  SoftmaxTangentHead<T>(form.name, arena, in, form.scale(in), executor.workers())
      .run(form.causal, tangents, out, executor);
}

}  // namespace detail

template <AttentionInputs In>
std::size_t softmax_tangent_workspace_bytes(const In& in, const ExecutorRef& executor) {
  constexpr const char* kName = "softmax_tangent_workspace_bytes";
  return detail::form_tangent_bytes(detail::softmax_form(in, kName, false), in, executor);
}

template <AttentionInputs In>
void softmax_bidirectional_tangent(const In& in, const detail::tangents_of<In>& tangents,
                                   const detail::tangent_output_of<In>& out,
                                   const SoftmaxOptions& options, const Call& call) {
  detail::run_tangent(detail::softmax_form(in, "softmax_bidirectional_tangent", false, options), in,
                      tangents, {}, out, call);
}

template <AttentionInputs In>
void softmax_causal_tangent(const In& in, const detail::tangents_of<In>& tangents,
                            const detail::tangent_output_of<In>& out, const SoftmaxOptions& options,
                            const Call& call) {
  detail::run_tangent(detail::softmax_form(in, "softmax_causal_tangent", true, options), in,
                      tangents, {}, out, call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
